// An engine's server for tests, with each protocol: ranks that step, queues, and faults on request.
//
// Purpose: shows the router what real engines do, and what no engine should do. The next token of a sequence
// depends on the sequence alone (NextToken), so a request that continues elsewhere must bring its earlier
// tokens to get the right next ones. Without a temperature vLLM samples, and so other tokens are generated.
// When a request ends because of Abort, or because its caller has left, SGLang also ends all requests whose
// names begin with its name. Log-probabilities are arbitrary, and every message with log-probabilities has an
// unknown field. A prompt that begins with a Fault's number gets that fault. Threads: the test's; the server
// has its own.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "tests/testing/engine_protocols.h"
#include "tests/testing/handed_over_kv.h"
#include "tests/testing/meeting_rooms.h"
#include "tests/testing/next_token.h"
#include "tests/testing/vllm_calls.h"

namespace bfio::testing {

// A prompt that begins with one of these numbers gets this fault, by default at its third token:
enum Fault : uint32_t {
  kTooManyTokens = 901,  // more tokens than requested
  kOtherOutput,          // a chunk of an output that was not requested
  kNoReason,             // the stream ends with OK but without a completion
  kEngineError,          // finish_reason "error"
  kEngineAbort,          // finish_reason "abort"
  kBadRequest,           // INVALID_ARGUMENT before any token, with trailing metadata
  kFull,                 // RESOURCE_EXHAUSTED before any token, the first time
  kTwice,                // the chunk is sent twice
  kMissing,              // the chunk is not sent
  kSwapped,              // the last chunk but one is sent after the last one
  kUnavailable,          // the stream breaks with UNAVAILABLE; the server stays healthy
  kInternal,             // the same with INTERNAL
};

template <typename P>
class ScriptedEngineOf final : public P::Service::Service {
 public:
  using Request = typename P::GenerateRequest;
  using Response = typename P::GenerateResponse;

  struct Options {
    // HOST:PORT.
    std::string listen;
    int32_t ranks = 1;
    // Index of this server's first rank among all ranks of the model, and their number (0: only this one's),
    // as in vLLM's external or hybrid load balancing. GetLoads uses the index; data_parallel_rank does not.
    int32_t first_rank = 0, all_ranks = 0;
    int32_t slots = 4;
    // KV memory per rank. GetLoads reports the sum over the server's ranks, and each rank's use as a share of
    // this sum.
    int32_t kv_tokens = 0;
    uint32_t max_context = 4096;
    absl::Duration step = absl::Milliseconds(2);
    std::string model = "scripted";
    // As GetModelInfo says; 0: it does not.
    int32_t vocabulary = 0;
    // Duration of a health check. SGLang generates a token for it, and checks for this every half second.
    absl::Duration health;
    // Each rank caches the KV of all its prompts in blocks of 16 tokens, and reports the cached tokens of
    // each new prompt.
    bool prefix_cache = false;
    // The server chooses the rank of a request itself, and takes none that names one (SGLang without bfio's
    // patch).
    bool chooses_ranks = false;
    // It computes prompts for other servers with the same `kv`, or for which others do.
    std::string kv_role, kv_engine_id, kv_connector = "NixlConnector";
    std::shared_ptr<HandedOverKv> kv;
    // SGLang's, with the same rooms; kv_role is "prefill" or "decode". It computes no prompt while `holds`.
    std::shared_ptr<MeetingRooms> rooms;
    int32_t bootstrap_port = 0;
    bool holds = false;
    // Changes its hand-offs from the fifth on (a JSON merge patch); empty: none.
    std::string spoils;
    // Reports ranks as newer servers of SGLang do with --enable-dp-attention.
    bool attention_ranks = false;
  };
  explicit ScriptedEngineOf(Options options);
  ~ScriptedEngineOf() override;

  // Behaves like a process that is killed: every stream breaks.
  void Kill();
  // From now on each rank also has this many requests of other clients, with this many tokens each. They take
  // slots first.
  void SetOthers(int requests, int tokens);
  // From now on GetLoads does not respond.
  void SilenceLoads();
  // What SubscribeKvEvents sends from now on; open streams end. kNone: UNIMPLEMENTED. kTrue: records of the
  // true loads, as vLLM sends them with events. kReset: three rounds of records, then the stream breaks.
  // kOutOfOrder: after each record one with a lower number and no requests.
  enum class Records { kNone, kTrue, kReset, kOutOfOrder };
  void SetRecords(Records records);
  // While silent, no rank steps, and health checks are answered only if `healthy`.
  void SetSilent(bool silent, bool healthy = false);

  struct Counts {
    // Sums over all ranks: requests in a slot, requests in the queue, the longest queue of any rank so far,
    // and requests accepted and cancelled by the caller so far.
    int running = 0, waiting = 0, longest_queue = 0, taken = 0, cancelled = 0;
    // Number of calls of SubscribeKvEvents.
    int subscriptions = 0;
    // Requests accepted, by rank.
    std::vector<int> by_rank;
  };
  Counts counts();
  // The accepted requests and the responses to each, in order.
  struct Exchange {
    Request request;
    std::vector<Response> responses;
    // From the call's metadata; empty: none.
    std::string traceparent;
  };
  std::vector<Exchange> exchanges();

 private:
  using Status = grpc::Status;
  struct Rank {
    int running = 0, waiting = 0;
    // Tokens of the running requests.
    int tokens = 0;
    // With a prefix cache: all prompts so far.
    std::vector<std::vector<uint32_t>> prompts;
  };
  // Returns the number of the prompt's tokens that the rank has cached, and adds the prompt to the cache.
  uint32_t TakeCached(Rank& rank, std::vector<uint32_t> prompt) const;

  Status GetServerInfo(grpc::ServerContext*, const typename P::GetServerInfoRequest*,
                       typename P::GetServerInfoResponse* response) override;
  Status GetModelInfo(grpc::ServerContext*, const typename P::GetModelInfoRequest*,
                      typename P::GetModelInfoResponse* response) override;
  Status GetLoads(grpc::ServerContext*, const typename P::GetLoadsRequest*,
                  typename P::GetLoadsResponse* response) override;
  Status SubscribeKvEvents(grpc::ServerContext* context, const common_pb::SubscribeKvEventsRequest* request,
                           grpc::ServerWriter<common_pb::KvEventBatch>* writer) override;
  Status Abort(grpc::ServerContext*, const typename P::AbortRequest* request,
               typename P::AbortResponse*) override;
  Status HealthCheck(grpc::ServerContext*, const typename P::HealthCheckRequest*,
                     typename P::HealthCheckResponse* response) override;
  Status Generate(grpc::ServerContext* context, const Request* request,
                  grpc::ServerWriter<Response>* writer) override;
  Status Run(grpc::ServerContext* context, const Request& request, grpc::ServerWriter<Response>* writer);
  // Sends a response of exchange `number`.
  void Send(size_t number, Response response, grpc::ServerWriter<Response>* writer);
  HandedOverKv::Fetched Fetch(const Request& request);
  // Computes the prompt for another rank, or waits for it. False: the call is over.
  bool Meet(grpc::ServerContext* context, const Request& request, std::unique_lock<std::mutex>& lock);
  // Waits for the next step; false when the call is over.
  bool NextStep(grpc::ServerContext* context, std::unique_lock<std::mutex>& lock);
  void AbortAll(const std::string& name);
  void Steps();

  const Options options_;
  std::mutex mutex_;
  std::condition_variable stepped_;
  std::vector<Rank> ranks_;
  int64_t step_ = 0;
  bool silent_ = false, healthy_ = true, killed_ = false, was_full_ = false;
  int others_ = 0, others_tokens_ = 0;
  bool slow_loads_ = false;
  Records records_ = Records::kNone;
  Counts counts_;
  std::vector<Exchange> exchanges_;
  // Running requests by name: whether each has been aborted.
  std::map<std::string, bool> names_;
  std::thread thread_;
  std::unique_ptr<grpc::Server> server_;
};

extern template class ScriptedEngineOf<Vllm>;
extern template class ScriptedEngineOf<Sglang>;
using ScriptedEngine = ScriptedEngineOf<Vllm>;

}  // namespace bfio::testing
