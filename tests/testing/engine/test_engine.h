// The ranks of one process behind vLLM's API, as a vLLM server has them: an engine for tests and benchmarks.
//
// Purpose: what routers and gateways call where no GPU is. A request gets a rank at once (RankBalancer, or
// the rank that it names) and waits there in order of arrival, until the rank has a slot and memory for its
// prompt. KV grows on demand; a preempted request goes back into its rank's queue before all later ones. All
// ranks meet after every step. Threads: one per rank, and gRPC's, one per call; one lock guards the queues.
#pragma once

#include <grpcpp/grpcpp.h>

#include <barrier>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engines/vllm.grpc.pb.h"
#include "tests/testing/handed_over_kv.h"
#include "worker/engine/engine.h"
#include "worker/link/step_log.h"

namespace bfio::testing {

// Which rank of an engine gets a request: the choice that vLLM makes inside an engine with several ranks.
//
// Source: vLLM 0.32, DPLBAsyncMPClient.get_core_engine_for_request (vllm/v1/engine/core_client.py) and
// DPCoordinatorProc (vllm/v1/engine/coordinator.py), with one client and ranks that step together.
//   score = max(requests in flight here, waiting + running) + 6 * waiting * max(0, kv - 0.5)
// The rank with the least score is chosen; the search begins one rank further each time. Requests in flight
// are counted at once. Waiting, running and kv are published at most every 100 ms, as of the last step that
// all ranks have reported; between two publications a choice adds to the rank's waiting.
//
// Purpose: bfio_test_engine balances like vLLM. Pure. Threads: one. Times only grow.
class RankBalancer {
 public:
  // A rank's report.
  struct Counts {
    int64_t waiting = 0;
    int64_t running = 0;
    // Used share of its KV memory.
    double kv = 0;
  };

  RankBalancer(int ranks, absl::Time now);

  // The rank for the next request, which is in flight there from now on.
  int Choose(absl::Time now);
  // Counts a request that named its rank.
  void Pin(int rank) { ++in_flight_[static_cast<size_t>(rank)]; }
  // Records that a request of that rank has ended.
  void End(int rank) { --in_flight_[static_cast<size_t>(rank)]; }

  // Records a rank's state after a step, including the requests that have arrived since.
  void Report(int rank, int64_t step, const Counts& counts, absl::Time now);

 private:
  // Publishes the state that was due before `now`.
  void PublishDue(absl::Time now);

  std::vector<int64_t> in_flight_;
  int start_ = 0;
  // The state as published to clients.
  std::vector<Counts> published_;

  // The coordinator's state: the ranks' reports, and whether they have changed.
  std::vector<Counts> counts_;
  bool changed_ = false;
  int64_t step_ = -1;
  // The reports of all ranks before the step that they report now.
  std::optional<std::vector<Counts>> whole_step_;
  absl::Time published_at_, waits_since_;
};

class TestEngine final : public ::vllm::grpc::engine::VllmEngine::Service {
 public:
  struct Model {
    // The name for gateways, and where they find the tokenizer; may be empty.
    std::string name, tokenizer;
  };
  // `engines`: one per rank, not empty. `log`: may be null; outlives this. `kv`: for prompts that are
  // computed by one server and decoded by another, with this role (kv_producer or kv_consumer); null: it does
  // both.
  TestEngine(Model model, std::vector<std::unique_ptr<worker::Engine>> engines, worker::StepLog* log,
             std::unique_ptr<HandedOverKv> kv, std::string kv_role);
  // REQUIRES: no call is open.
  ~TestEngine() override;

 private:
  using Status = grpc::Status;

  // Part of an output: a token, or its end.
  struct Event {
    uint32_t output = 0;
    std::optional<uint32_t> token;
    float logprob = 0;
    std::vector<worker::TopToken> top;
    // "stop", "length" or "abort"; or an error. Empty and OK: the output goes on.
    std::string reason;
    absl::Status error;
    bool ends() const { return !reason.empty() || !error.ok(); }
  };
  // What the ranks pass to the thread of a call.
  struct Mailbox {
    std::mutex mutex;
    std::condition_variable filled;
    std::vector<Event> events;
    void Put(Event event);
  };
  struct Sequence {
    worker::SequenceRequest request;
    uint32_t output = 0;
    int rank = 0;
    std::shared_ptr<Mailbox> mailbox;
    bool running = false;
  };
  using Sequences = std::map<worker::Handle, Sequence>;  // handles ascend in the order of arrival
  struct Rank {
    std::unique_ptr<worker::Engine> engine;
    worker::StepLog::Rank* log = nullptr;
    std::thread thread;
    worker::StepOutput out;
    std::deque<worker::Handle> waiting;
    // Running sequences whose callers have left.
    std::vector<worker::Handle> cancelled;
    // As of the last step.
    int64_t running = 0, kv_used = 0;
  };
  struct Park {
    TestEngine* engine;
    void operator()() noexcept { engine->AwaitRequests(); }
  };

  Status Generate(grpc::ServerContext* context, const ::vllm::grpc::engine::GenerateRequest* request,
                  grpc::ServerWriter<::vllm::grpc::engine::GenerateResponse>* writer) override;
  Status Abort(grpc::ServerContext*, const ::vllm::grpc::engine::AbortRequest* request,
               ::vllm::grpc::engine::AbortResponse*) override;
  Status HealthCheck(grpc::ServerContext*, const ::vllm::grpc::engine::HealthCheckRequest*,
                     ::vllm::grpc::engine::HealthCheckResponse* response) override;
  Status GetModelInfo(grpc::ServerContext*, const ::vllm::grpc::engine::GetModelInfoRequest*,
                      ::vllm::grpc::engine::GetModelInfoResponse* response) override;
  Status GetServerInfo(grpc::ServerContext*, const ::vllm::grpc::engine::GetServerInfoRequest*,
                       ::vllm::grpc::engine::GetServerInfoResponse* response) override;
  Status GetLoads(grpc::ServerContext*, const ::vllm::grpc::engine::GetLoadsRequest* request,
                  ::vllm::grpc::engine::GetLoadsResponse* response) override;
  Status SubscribeKvEvents(grpc::ServerContext* context,
                           const ::smg::grpc::common::SubscribeKvEventsRequest* request,
                           grpc::ServerWriter<::smg::grpc::common::KvEventBatch>* writer) override;

  // The request's sequences, `n` of them, or why there are none.
  absl::StatusOr<std::vector<worker::Handle>> Submit(const ::vllm::grpc::engine::GenerateRequest& request,
                                                     const std::shared_ptr<Mailbox>& mailbox);
  // Removes the sequences that have not ended; with a reason that is passed to their callers.
  void Drop(const std::vector<worker::Handle>& handles, const std::string& reason);
  void Erase(Sequences::iterator sequence);
  int64_t LongestSequence() const;
  std::vector<::vllm::grpc::engine::SchedulerLoad> Loads();

  // A rank's thread.
  void Run(int index);
  // Lets waiting sequences begin, as slots and memory allow; returns how many began.
  int32_t Admit(Rank& rank);
  // Takes the results of a step; the events are for the mailboxes after the barrier.
  std::vector<std::pair<std::shared_ptr<Mailbox>, Event>> Follow(int index, int64_t step);
  // Called by one rank's thread while the others wait: returns when there is a request, or at the end.
  void AwaitRequests();

  const Model model_;
  const std::unique_ptr<HandedOverKv> kv_;
  const std::string kv_role_;
  const int64_t salt_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Rank> ranks_;
  RankBalancer balancer_;
  Sequences sequences_;
  std::map<std::string, std::vector<worker::Handle>> names_;
  worker::Handle last_ = 0;
  // `idle_`: no sequence was left at the last barrier.
  bool stopping_ = false, idle_ = false;
  // Set while all ranks are at the barrier: whether they waited for a request there, and whether they end.
  bool parked_ = true, ended_ = false;
  std::barrier<Park> barrier_;
};

}  // namespace bfio::testing
