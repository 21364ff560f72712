// A vLLM server for tests: ranks that step, queues, and faults on request.
//
// Purpose: what real engines do to the router, and what none should. The next token of a sequence depends on
// the sequence alone (NextToken), so that a request which is continued elsewhere has to bring the tokens of
// one that was not; without a temperature, at which vLLM samples, others come. Log-probabilities are made up,
// and every message of a request that asks for some has a unknown field. A prompt that begins with a Fault's
// number gets that fault. Threads: the test's; the server has its own.
#ifndef BFIO_TESTS_TESTING_SCRIPTED_ENGINE_H_
#define BFIO_TESTS_TESTING_SCRIPTED_ENGINE_H_

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "engines/vllm.grpc.pb.h"

namespace bfio::testing {

// Begin a prompt with one of these. At the request's third token:
enum Fault : uint32_t {
  kTooManyTokens = 901,  // more than were asked for
  kOtherOutput,          // a chunk of an output that was not asked for
  kNoReason,             // the stream ends well without a completion
  kEngineError,          // finish_reason "error"
  kEngineAbort,          // finish_reason "abort"
  kBadRequest,           // INVALID_ARGUMENT before any token
  kFull,                 // RESOURCE_EXHAUSTED before any token, the first time
  kTwice,                // the chunk comes twice
  kMissing,              // the chunk is missing
  kSwapped,              // the chunk comes after the next one; of vLLM the last two are swapped
  kUnavailable,          // the stream breaks with UNAVAILABLE, and the server is well
  kInternal,             // the same with INTERNAL
};

// Of a sequence that ends in `last` and has `length` tokens.
uint32_t NextToken(uint32_t last, size_t length);
// What an engine that nothing disturbs generates.
std::vector<uint32_t> TokensAfter(const std::vector<uint32_t>& prompt, size_t count);

class ScriptedEngine final : public ::vllm::grpc::engine::VllmEngine::Service {
 public:
  struct Options {
    // HOST:PORT.
    std::string listen;
    int32_t ranks = 1;
    // The first of them among all ranks of the model, and how many there are (0: only these), as of servers
    // with external or hybrid load balancing. GetLoads counts over all, data_parallel_rank over the server's.
    int32_t first_rank = 0, all_ranks = 0;
    int32_t slots = 4;
    // Of a rank. GetLoads reports those of all the server's ranks together, and a rank's use as a share of
    // them.
    int32_t kv_tokens = 0;
    uint32_t max_context = 4096;
    absl::Duration step = absl::Milliseconds(2);
    std::string model = "scripted";
    // What a health check takes. SGLang generates a token for it, and looks for that every half a second.
    absl::Duration health;
    // Each rank keeps the KV of all its prompts, in blocks of 16 tokens, and says how much of a new one it
    // had.
    bool prefix_cache = false;
  };
  explicit ScriptedEngine(Options options);
  ~ScriptedEngine() override;

  // As a process that is killed: every stream breaks.
  void Kill();
  // Requests of other clients that each rank has from now on, with so many tokens each. They take slots
  // first.
  void SetOthers(int requests, int tokens);
  // What GetLoads says from now on: the truth, a million times as much, that of ranks that do not exist, or
  // nothing (it does not answer).
  enum class Loads { kTrue, kWrong, kWrongRank, kSlow };
  void SetLoads(Loads loads);
  // What SubscribeKvEvents sends from now on, while the truth is GetLoads' kTrue; streams that are open end.
  // kNone: UNIMPLEMENTED. kTrue: records of loads, as vLLM sends them with events. kSilent: nothing. kReset:
  // three, and the stream breaks. kOutOfOrder: after each record one with a lower number, and no
  // requests.
  enum class Records { kNone, kTrue, kSilent, kReset, kWrongRank, kOutOfOrder };
  void SetRecords(Records records);
  // While it holds, no rank steps, and health checks are answered only if `healthy`.
  void SetSilent(bool silent, bool healthy = false);

  struct Counts {
    // Of all ranks: requests in a slot, in the queue, the longest queue that a rank has had, and requests
    // taken and cancelled by the caller so far.
    int running = 0, waiting = 0, longest_queue = 0, taken = 0, cancelled = 0;
    // Calls of SubscribeKvEvents.
    int subscriptions = 0;
    // Taken, by rank.
    std::vector<int> by_rank;
  };
  Counts counts();
  // The requests that it took, in order, and what it sent for each, in order.
  struct Exchange {
    ::vllm::grpc::engine::GenerateRequest request;
    std::vector<::vllm::grpc::engine::GenerateResponse> responses;
    // Of the call's metadata; empty: none.
    std::string traceparent;
  };
  std::vector<Exchange> exchanges();

 private:
  using Status = grpc::Status;
  struct Rank {
    int running = 0, waiting = 0;
    // Of the running ones.
    int tokens = 0;
    // With a prefix cache: all prompts that it has had.
    std::vector<std::vector<uint32_t>> prompts;
  };
  // Tokens of the prompt that the rank has; adds it to them.
  uint32_t TakeCached(Rank& rank, std::vector<uint32_t> prompt) const;

  Status GetServerInfo(grpc::ServerContext*, const ::vllm::grpc::engine::GetServerInfoRequest*,
                       ::vllm::grpc::engine::GetServerInfoResponse* response) override;
  Status GetModelInfo(grpc::ServerContext*, const ::vllm::grpc::engine::GetModelInfoRequest*,
                      ::vllm::grpc::engine::GetModelInfoResponse* response) override;
  Status GetLoads(grpc::ServerContext*, const ::vllm::grpc::engine::GetLoadsRequest*,
                  ::vllm::grpc::engine::GetLoadsResponse* response) override;
  Status SubscribeKvEvents(grpc::ServerContext* context,
                           const ::smg::grpc::common::SubscribeKvEventsRequest* request,
                           grpc::ServerWriter<::smg::grpc::common::KvEventBatch>* writer) override;
  Status HealthCheck(grpc::ServerContext*, const ::vllm::grpc::engine::HealthCheckRequest*,
                     ::vllm::grpc::engine::HealthCheckResponse* response) override;
  Status Generate(grpc::ServerContext* context, const ::vllm::grpc::engine::GenerateRequest* request,
                  grpc::ServerWriter<::vllm::grpc::engine::GenerateResponse>* writer) override;
  Status Run(grpc::ServerContext* context, const ::vllm::grpc::engine::GenerateRequest& request,
             grpc::ServerWriter<::vllm::grpc::engine::GenerateResponse>* writer);
  // Of the exchange `number`.
  void Send(size_t number, const ::vllm::grpc::engine::GenerateResponse& response,
            grpc::ServerWriter<::vllm::grpc::engine::GenerateResponse>* writer);
  // Waits for the next step; false when the call is over.
  bool NextStep(grpc::ServerContext* context, std::unique_lock<std::mutex>& lock);
  void Steps();

  const Options options_;
  std::mutex mutex_;
  std::condition_variable stepped_;
  std::vector<Rank> ranks_;
  int64_t step_ = 0;
  bool silent_ = false, healthy_ = true, killed_ = false, was_full_ = false;
  int others_ = 0, others_tokens_ = 0;
  Loads loads_ = Loads::kTrue;
  Records records_ = Records::kNone;
  Counts counts_;
  std::vector<Exchange> exchanges_;
  std::thread thread_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace bfio::testing

#endif  // BFIO_TESTS_TESTING_SCRIPTED_ENGINE_H_
