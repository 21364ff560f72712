// Clients that read their streams to the end, one thread per client.
//
// Purpose: compares the tokens that many clients receive with the expected ones while a test disturbs the
// cluster. Threads: one for each request, joined by Join.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "bfio/v1/inference.grpc.pb.h"
#include "tests/testing/cluster.h"

namespace bfio::testing {

class TokenClients {
 public:
  // The cluster outlives it. `on_token` is called by any of the threads with the total number
  // of tokens received so far.
  TokenClients(Cluster& cluster, const std::vector<v1::GenerateRequest>& requests,
               std::function<void(int)> on_token = nullptr)
      : on_token_(std::move(on_token)), results_(requests.size()) {
    for (size_t i = 0; i < requests.size(); ++i)
      threads_.emplace_back([this, &cluster, request = requests[i], i] { Read(cluster, request, i); });
  }
  ~TokenClients() { Join(); }

  // Waits until this many tokens have arrived in total, or a stream has failed, or all have ended;
  // ExpectTokens checks which.
  void AwaitTokens(int count) const {
    while (seen_ < count && !failed_ && ended_ < results_.size()) absl::SleepFor(absl::Milliseconds(1));
  }

  const std::vector<GenerateResult>& Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    return results_;
  }
  void ExpectTokens(const std::vector<std::vector<uint32_t>>& wanted) {
    Join();
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_TRUE(results_[i].status.ok()) << results_[i].status.error_message();
      EXPECT_TRUE(results_[i].contiguous) << "request " << i;
      EXPECT_EQ(results_[i].tokens, wanted[i]) << "request " << i;
    }
  }

 private:
  void Read(Cluster& cluster, const v1::GenerateRequest& request, size_t i) {
    RequestStream stream(cluster.inference(), request, {.deadline = kSlowdown * absl::Seconds(120)});
    for (size_t before = 0; stream.Read(); before = stream.result().tokens.size()) {
      const int seen = seen_ += static_cast<int>(stream.result().tokens.size() - before);
      if (on_token_) on_token_(seen);
    }
    results_[i] = stream.result();
    if (!results_[i].status.ok()) failed_ = true;
    ++ended_;
  }

  const std::function<void(int)> on_token_;
  std::atomic<int> seen_ = 0;
  std::atomic<bool> failed_ = false;
  std::atomic<size_t> ended_ = 0;
  std::vector<GenerateResult> results_;
  std::vector<std::thread> threads_;
};

// `n` requests of `output` tokens each, with seeds.
inline std::vector<v1::GenerateRequest> SeededRequests(int n, uint32_t output) {
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < n; ++i) {
    requests.push_back(SyntheticRequest(10 + i, output));
    requests.back().mutable_sampling()->set_seed(100 + i);
  }
  return requests;
}

inline void ExpectWhole(const std::vector<GenerateResult>& results, uint32_t output) {
  for (const GenerateResult& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.tokens.size(), output);
    EXPECT_TRUE(result.contiguous);
    EXPECT_EQ(result.finishes, 1);
  }
}

}  // namespace bfio::testing
