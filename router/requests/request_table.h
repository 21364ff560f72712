// The requests that the router has accepted and not yet removed. The state of a request that the scheduling
// core does not need: the client's stream, the prompt (for the assignment and for a replay), delivered
// tokens, times. Owned by the decision thread; not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/telemetry/log_fields.h"
#include "router/core/agents/parents.h"
#include "router/core/model/request.h"
#include "router/requests/request.h"
#include "router/requests/tenant_limits.h"
#include "router/requests/token_sink.h"

namespace bfio::router {

// Whether a request may be the cause of its workers' crashes. A request that crashes its worker must not be
// replayed on one worker after another, and the other requests on those workers must not be ended because of
// it. The loss of a worker counts against each request that is placed on it. After kAlone failures in a row
// the request runs alone (core::RequestSpec::steps_alone), so that the next failure identifies it; after
// kBlamed it is ended. kTokensThatClear tokens in one placement end the row, alone or not. A replay starts at
// the last token that arrived, so a crash caused by the request's own tokens repeats within the few steps
// whose reports were lost with the worker; kTokensThatClear is larger than their number. With a larger value,
// requests that happened to be on unstable workers would be suspected. A request whose workers fail later
// each time is ended after kMost failures in all. Pure counting; the decision thread's.
class Suspicion {
 public:
  static constexpr int kAlone = 2;
  static constexpr int kBlamed = 3;
  static constexpr int kMost = 16;
  static constexpr uint32_t kTokensThatClear = 16;

  // `since_placed`: tokens since its placement.
  void OnTokens(uint32_t since_placed) {
    if (since_placed >= kTokensThatClear) in_a_row_ = 0;
  }
  // A worker failed while the request was placed on it.
  void OnDeath() {
    ++in_a_row_;
    ++deaths_;
  }

  bool runs_alone() const { return in_a_row_ >= kAlone; }
  // Value of core::RequestSpec::steps_alone. After kTokensThatClear steps, of a token each, other requests
  // may join.
  int32_t steps_alone() const { return runs_alone() ? static_cast<int32_t>(kTokensThatClear) : 0; }
  bool blamed() const { return in_a_row_ >= kBlamed || deaths_ >= kMost; }
  int deaths() const { return deaths_; }

 private:
  int in_a_row_ = 0;
  int deaths_ = 0;
};

struct RequestRecord {
  core::RequestId id = 0;
  ClientRequest request;
  // Null while a resumable request waits for its client to reconnect.
  std::shared_ptr<TokenSink> sink;
  // The present stream gets tokens from this index on; its client has the earlier ones.
  uint32_t send_from = 0;
  // W3C trace context of the request's newest call; empty: none.
  std::string traceparent;
  // The number of request.tenant (Tenants::Number).
  uint32_t tenant = 0;
  // Name of its parent among agents' parents (AgentCalls); empty: none.
  std::string parent;
  // Taken from the parent when the call arrived: the step from which the call counts as waiting, and the
  // parent's deadline, microseconds of the router's clock.
  std::optional<int64_t> senior_step;
  int64_t deadline_us = core::RequestSpec::kNoDeadline;
  // Monotonic times.
  absl::Time accepted;
  std::optional<absl::Time> placed;
  // When the request ends if no worker is found for it; only until it is placed (QueueDeadlines).
  std::optional<absl::Time> queue_deadline;
  std::optional<absl::Time> first_token;
  // Time of the newest token; valid when first_token is set.
  absl::Time last_token;
  int64_t wait_steps = 0;
  // Steps by which it counted as older when it last entered the pool (core::RequestSpec::seniority).
  int64_t seniority = 0;
  // The rank that it ran on last, counted over all groups.
  std::optional<uint32_t> last_rank;
  // Number of tokens received from its workers, which is also the index of the next one.
  uint32_t delivered = 0;
  // Part of `delivered`: tokens that its client, or an earlier router, had before this router received the
  // request.
  uint32_t had = 0;
  // Part of `delivered`: tokens that its client reports to have, without proof. The scheduler treats them as
  // prompt.
  uint32_t claimed = 0;
  // `delivered` at its last placement.
  uint32_t placed_at = 0;
  // Number of the model that generated its tokens, including those that its client has; 0: no tokens, or
  // unknown.
  uint32_t model = 0;
  // The rank that its client has named (ClientRequest::rank), as the scheduler has it.
  std::optional<core::RequestSpec::HeldRank> held_to;
  // Number of the model of its last placement.
  uint32_t placed_model = 0;
  // The delivered tokens; kept only where a replay needs them in its prompt, or a resume for its client.
  std::vector<uint32_t> history;
  // The log-probabilities of the last tokens of `history`, for a resume; kept where the request is resumable
  // and has them. Those of received tokens (ClientRequest::received) are missing.
  Logprobs history_logprobs;
  // Bytes charged for prompt and history (ReplayBudget).
  int64_t kept_bytes = 0;
  // Charges in overload control: bytes of its prompt until its first token, and the KV tokens that it may
  // need.
  int64_t waiting_bytes = 0;
  int64_t committed_kv = 0;
  TenantLimiter::Ticket ticket;
  // Prompt and history were dropped: the request ends when its worker is lost.
  bool forgotten = false;
  // Time at which the request ends if its client has not reconnected; valid while there is no stream.
  absl::Time resume_by = absl::InfiniteFuture();
  // Set when it has ended and is kept for a client that may have missed the end.
  std::optional<Finish> ended;
  // Consecutive refusals by workers that had no KV memory for it (core::RequestSpec::refusals).
  int refusals = 0;
  // Time of the first refusal; empty: not refused since its last token, or since a worker accepted it.
  std::optional<absl::Time> refused_since;
  // Whether it may be the cause of its workers' crashes.
  Suspicion suspicion;
  // It waits for a rank that computes its prompt for another, or is there; afterwards the result, until it is
  // sent to a rank; it has been sent to the present rank. Number of hand-offs so far.
  bool hands_over = false;
  HandOffPtr hand_off;
  bool hand_off_used = false;
  int hand_offs = 0;
  // Its id in the core, and that of its prompt, where a rank computes that while another waits for it; 0:
  // none.
  core::RequestId core_id = 0, prompt = 0;
  // The worker on which it is placed has failed; read when the request is lost.
  bool worker_died = false;

  bool keeps_history() const {
    const Passing& passed = request.passed;
    return !forgotten && (request.has_prompt_ids() || request.resumable || passed.continues);
  }
  bool keeps_logprobs() const { return !forgotten && request.resumable && request.sampling.logprobs; }
  // The first token whose log-probability is kept. REQUIRES: keeps_logprobs().
  uint32_t logprobs_from() const { return delivered - static_cast<uint32_t>(history_logprobs.tokens.size()); }
  int64_t history_bytes() const { return int64_t{4} * static_cast<int64_t>(history.size()); }

  // The request's id in log lines, with tenant and trace; Fields: the same as fields of a log line.
  std::string LogName() const;
  std::vector<LogField> Fields() const;
  // The remaining work in the core's form, for a request that enters in that step; delivered tokens count as
  // prompt. Sets seniority.
  core::RequestSpec Spec(int64_t next_step);
  // Keeps the newest of the delivered tokens where a replay or a resume needs them. Returns the bytes to
  // charge for that, including the prompt's when they are the first.
  int64_t Keep(absl::Span<const uint32_t> tokens, const LogprobsView& logprobs);
  // What its worker receives. Borrows from the record.
  bfio::router::Assignment MakeAssignment(bool kv_on_demand) const;
  bool from_hand_off() const { return hand_off != nullptr || request.passed.kv_from_elsewhere; }
  Finish MakeFinish(FinishReason reason, absl::Time now) const;
};

class RequestTable {
 public:
  // Null, without any change, when the table has a request with that id, or the tenant has a live call with
  // the same request_id. Outputs above the first join their call. `sink` may be null.
  RequestRecord* Add(core::RequestId id, ClientRequest request, std::shared_ptr<TokenSink> sink,
                     uint32_t tenant, absl::Time now);
  // Null when unknown. Pointers are valid until the record is erased.
  RequestRecord* Find(core::RequestId id) const;
  // Also null when it has ended and is only kept for its client.
  RequestRecord* FindLive(core::RequestId id) const;
  // A request of that call; its only one unless it has several outputs.
  RequestRecord* FindByName(const std::string& tenant, const std::string& request_id);
  // The requests of that call.
  std::vector<core::RequestId> IdsOf(const std::string& tenant, const std::string& request_id) const;
  // The request that this stream belongs to; null when unknown.
  RequestRecord* FindBySink(uint64_t sink_id);
  // Sets the stream of a request; null: none.
  void SetSink(RequestRecord& record, std::shared_ptr<TokenSink> sink);
  void Erase(core::RequestId id);

  size_t size() const { return records_.size(); }
  // All ids, ascending.
  std::vector<core::RequestId> Ids() const;

 private:
  absl::flat_hash_map<core::RequestId, std::unique_ptr<RequestRecord>> records_;
  // Ids by tenant and request_id: those of a call's outputs.
  absl::flat_hash_map<std::pair<std::string, std::string>, std::vector<core::RequestId>> names_;
  absl::flat_hash_map<uint64_t, core::RequestId> sinks_;
};

// Deadlines of requests that have never been placed, or that workers refuse. The bound on the time in the
// waiting pool (--max_queue_time). Each request has a deadline from its arrival to its first placement or its
// end, whichever comes first; all requests may wait equally long. A request that a worker refuses after that
// has a deadline again, counted from the first refusal. A client's own deadline may end the request earlier.
// Threads: the decision thread's; time is passed in.
class QueueDeadlines {
 public:
  // 0: no bound.
  explicit QueueDeadlines(absl::Duration longest) : longest_(longest) {}

  absl::Duration longest() const { return longest_; }

  // The request has waited since then.
  void Add(RequestRecord& record, absl::Time since) {
    // A hand-off has one of its own.
    if (record.hand_off != nullptr) return AddUntil(record, since + kHandOffAge);
    if (longest_ <= absl::ZeroDuration()) return;
    AddUntil(record, since + longest_);
  }
  // The same, also where there is no bound.
  void AddUntil(RequestRecord& record, absl::Time deadline) {
    Remove(record);
    record.queue_deadline = deadline;
    // Deadlines mostly ascend, so the new entry is usually the last one.
    waiting_.emplace_hint(waiting_.end(), *record.queue_deadline, record.id);
  }
  // The request is placed, or ends. Without effect where it has no deadline.
  void Remove(RequestRecord& record) {
    if (!record.queue_deadline) return;
    waiting_.erase({*record.queue_deadline, record.id});
    record.queue_deadline.reset();
  }

  // A request whose deadline has passed; it stays until Remove.
  std::optional<core::RequestId> Due(absl::Time now) const {
    if (waiting_.empty() || waiting_.begin()->first > now) return std::nullopt;
    return waiting_.begin()->second;
  }
  absl::Time next_deadline() const {
    return waiting_.empty() ? absl::InfiniteFuture() : waiting_.begin()->first;
  }
  // In order.
  const std::set<std::pair<absl::Time, core::RequestId>>& waiting() const { return waiting_; }

 private:
  const absl::Duration longest_;
  std::set<std::pair<absl::Time, core::RequestId>> waiting_;
};

// Calls of agents: their order in the pool, and their parents' deadlines. A request with a parent_id is
// ordered in the pool by its parent (docs/design/agents.md). It ends with DEADLINE_EXCEEDED when the parent's
// deadline passes or can no longer be met. Keeps the parents (router/core/agents). Time and steps are passed
// in. Threads: the decision thread's.
class AgentCalls {
 public:
  // Sets the call's seniority and deadline from its parent. DEADLINE_EXCEEDED when the parent's deadline has
  // passed or cannot be met; `shortest_step` is a lower bound of the time per token, where one is known.
  absl::Status Check(RequestRecord& record, int64_t step, std::optional<absl::Duration> shortest_step,
                     absl::Time now) const;
  // The call has been accepted.
  void Join(const RequestRecord& record, int64_t step);
  // The call has ended.
  void Leave(RequestRecord& record, int64_t step);

  // Removes the deadlines that have passed; returns the calls of their parents.
  std::vector<core::RequestId> Expire(absl::Time now);
  absl::Time next_deadline() const;

  // The status of a call whose parent's deadline has passed.
  static absl::Status DeadlinePassed();

 private:
  core::Parents parents_;
  // Deadlines of parents, microseconds; may include parents that have ended.
  std::set<std::pair<int64_t, std::string>> deadlines_;
};

}  // namespace bfio::router
