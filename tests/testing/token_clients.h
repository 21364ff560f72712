// A client for each request of a list, which reads its stream to the end.
//
// Purpose: what many clients got, against what they were to get, while a test does something to the cluster.
// Threads: one for each request, joined by ExpectTokens.
#ifndef BFIO_TESTS_TESTING_TOKEN_CLIENTS_H_
#define BFIO_TESTS_TESTING_TOKEN_CLIENTS_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
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
  // The cluster and the requests outlive it. `on_token` is told, by any of the threads, how many tokens have
  // come in all.
  TokenClients(Cluster& cluster, const std::vector<v1::GenerateRequest>& requests,
               std::function<void(int)> on_token = nullptr)
      : on_token_(std::move(on_token)), tokens_(requests.size()), statuses_(requests.size()) {
    for (size_t i = 0; i < requests.size(); ++i) {
      threads_.emplace_back([this, &cluster, &requests, i] { Read(cluster, requests[i], i); });
    }
  }

  // Until so many tokens have come in all, or a stream has failed or all have ended, which ExpectTokens says.
  void AwaitTokens(int count) const {
    while (seen_ < count && !failed_ && ended_ < statuses_.size()) absl::SleepFor(absl::Milliseconds(1));
  }

  // Once.
  void ExpectTokens(const std::vector<std::vector<uint32_t>>& wanted) {
    for (std::thread& thread : threads_) thread.join();
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_TRUE(statuses_[i].ok()) << statuses_[i].error_message();
      EXPECT_EQ(tokens_[i], wanted[i]) << "request " << i;
    }
  }

 private:
  void Read(Cluster& cluster, const v1::GenerateRequest& request, size_t i) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120 * kSlowdown));
    const auto reader = cluster.inference().Generate(&context, request);
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
      EXPECT_TRUE(response.token_ids_size() == 0 || response.first_index() == tokens_[i].size());
      tokens_[i].insert(tokens_[i].end(), response.token_ids().begin(), response.token_ids().end());
      const int seen = seen_ += response.token_ids_size();
      if (on_token_) on_token_(seen);
    }
    statuses_[i] = reader->Finish();
    if (!statuses_[i].ok()) failed_ = true;
    ++ended_;
  }

  const std::function<void(int)> on_token_;
  std::atomic<int> seen_ = 0;
  std::atomic<bool> failed_ = false;
  std::atomic<size_t> ended_ = 0;
  std::vector<std::vector<uint32_t>> tokens_;
  std::vector<grpc::Status> statuses_;
  std::vector<std::thread> threads_;
};

}  // namespace bfio::testing

#endif  // BFIO_TESTS_TESTING_TOKEN_CLIENTS_H_
