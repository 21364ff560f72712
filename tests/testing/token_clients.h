// Clients that read their streams to the end, one thread per client.
//
// Purpose: compares the tokens that many clients receive with the expected ones while a test disturbs the
// cluster. Clients that resume are careful ones: when a stream breaks, they come back with what they have
// received. Threads: one for each request, joined by Join; any for Break and what was seen.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bfio/v1/inference.grpc.pb.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "tests/testing/cluster.h"

namespace bfio::testing {

class TokenClients {
 public:
  using Requests = std::vector<v1::GenerateRequest>;

  // The cluster outlives it. `on_token` is called by any of the threads with the total number
  // of tokens received so far.
  TokenClients(Cluster& cluster, const Requests& requests, std::function<void(int)> on_token = nullptr)
      : on_token_(std::move(on_token)), clients_(requests.size()) {
    Start(requests, [this, &cluster](Client& client, const v1::GenerateRequest& request) {
      ReadStream(client, cluster.inference(), request);
    });
  }
  // Clients that resume, with a connection each. Every request has an id.
  TokenClients(const std::string& address, const Requests& requests) : clients_(requests.size()) {
    Start(requests, [this, address](Client& client, const v1::GenerateRequest& request) {
      Resume(client, address, request);
    });
  }
  ~TokenClients() { Join(); }

  // Waits until this many tokens have arrived in total, or a stream has failed, or all have ended;
  // ExpectTokens checks which.
  void AwaitTokens(int count) const {
    while (seen_ < count && !failed_ && ended_ < clients_.size()) absl::SleepFor(absl::Milliseconds(1));
  }
  // Waits until each client has this many tokens; whether it has.
  bool AwaitEach(size_t tokens) const {
    return Eventually([&] { return least_seen() >= tokens; });
  }
  size_t least_seen() const {
    size_t least = SIZE_MAX;
    for (const Client& client : clients_) least = std::min(least, client.seen.load());
    return least;
  }
  // Breaks all streams, as a lost connection would.
  void Break() {
    for (Client& client : clients_) {
      MutexLock lock(&client.mutex);
      if (client.stream != nullptr) client.stream->Cancel();
    }
  }

  const std::vector<GenerateResult>& Join() {
    for (Client& client : clients_) {
      if (!client.thread.joinable()) continue;
      client.thread.join();
      results_.push_back(std::move(client.result));
    }
    return results_;
  }
  void ExpectTokens(const std::vector<std::vector<uint32_t>>& wanted) {
    Join();
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_TRUE(results_[i].status.ok()) << i << ": " << results_[i].status.error_message();
      EXPECT_TRUE(results_[i].contiguous) << "request " << i;
      EXPECT_EQ(results_[i].finishes, 1) << "request " << i;
      EXPECT_EQ(results_[i].tokens, wanted[i]) << "request " << i;
    }
  }

 private:
  struct Client {
    GenerateResult result;
    std::atomic<size_t> seen = 0;
    Mutex mutex;
    RequestStream* stream ABSL_GUARDED_BY(mutex) = nullptr;
    std::thread thread;
  };

  void Start(const Requests& requests, const std::function<void(Client&, const v1::GenerateRequest&)>& read) {
    for (size_t i = 0; i < requests.size(); ++i) {
      clients_[i].thread = std::thread([this, read, request = requests[i], &client = clients_[i]] {
        read(client, request);
        if (!client.result.status.ok()) failed_ = true;
        ++ended_;
      });
    }
  }
  void ReadStream(Client& client, v1::Inference::Stub& stub, const v1::GenerateRequest& request) {
    RequestStream stream(stub, request,
                         {.deadline = kSlowdown * absl::Seconds(120), .so_far = client.result});
    SetStream(client, &stream);
    while (stream.Read()) {
      const size_t tokens = stream.result().tokens.size();
      const int seen = seen_ += static_cast<int>(tokens - client.seen.exchange(tokens));
      if (on_token_) on_token_(seen);
    }
    client.result = stream.result();
    SetStream(client, nullptr);
  }
  void Resume(Client& client, const std::string& address, v1::GenerateRequest request) {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
    // This is also the timeout of one connection attempt, which can take long on a busy machine.
    args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
    args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
    const auto stub =
        v1::Inference::NewStub(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args));
    const absl::Time give_up = MonotonicNow() + kSlowdown * absl::Seconds(60);
    GenerateResult& result = client.result;
    request.set_resumable(true);
    do {
      ReadStream(client, *stub, request);
      const grpc::StatusCode code = result.status.error_code();
      if (code != grpc::StatusCode::UNAVAILABLE && code != grpc::StatusCode::CANCELLED) return;
      if (result.finishes > 0) {  // the stream broke after its last message, before its status
        result.status = grpc::Status::OK;
        return;
      }
      request.set_resume_from_index(static_cast<uint32_t>(result.tokens.size()));
      // Sending the received tokens is optional: every second client does.
      if (request.request_id().size() % 2 == 0)
        *request.mutable_received_token_ids() = {result.tokens.begin(), result.tokens.end()};
      absl::SleepFor(absl::Milliseconds(20));
    } while (MonotonicNow() < give_up);
  }
  static void SetStream(Client& client, RequestStream* stream) {
    MutexLock lock(&client.mutex);
    client.stream = stream;
  }

  const std::function<void(int)> on_token_;
  std::atomic<int> seen_ = 0;
  std::atomic<bool> failed_ = false;
  std::atomic<size_t> ended_ = 0;
  std::vector<Client> clients_;
  std::vector<GenerateResult> results_;
};

// `n` requests of `output` tokens each, with seeds.
inline TokenClients::Requests SeededRequests(int n, uint32_t output) {
  TokenClients::Requests requests;
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

// `n` resumable requests. Every third has prompt token ids; every fourth has no seed.
inline TokenClients::Requests ResumableRequests(int n, uint32_t output) {
  TokenClients::Requests requests = SeededRequests(n, output);
  for (int i = 0; i < n; ++i) {
    v1::GenerateRequest& request = requests[i];
    for (int t = 0; i % 3 == 0 && t < 10 + i; ++t) request.mutable_token_ids()->add_ids(t * 7 + i);
    if (i % 4 == 0) request.clear_sampling();
    request.set_request_id(absl::StrCat("r", i));
    request.set_resume_token("secret");
  }
  return requests;
}

// Clients of ResumableRequests get the tokens that the sim engine generates for these without faults.
inline void ExpectUndisturbed(TokenClients& clients, uint32_t output) {
  const auto count = static_cast<int>(clients.Join().size());
  Cluster cluster({.worker_processes = 1, .worker_flags = {"--c=0.0005", "--tl=0", "--slots=64"}});
  TokenClients undisturbed(cluster.address(), ResumableRequests(count, output));
  std::vector<std::vector<uint32_t>> wanted;
  ExpectWhole(undisturbed.Join(), output);
  for (const GenerateResult& result : undisturbed.Join()) wanted.push_back(result.tokens);
  clients.ExpectTokens(wanted);
}

}  // namespace bfio::testing
