// Every request the router has accepted and not yet forgotten.
//
// Purpose: the part of a request that the scheduling core does not need: the client's stream, the prompt (for
// the assignment and for a replay), what was delivered, times. Owned by the decision thread; not thread-safe.
#ifndef BFIO_ROUTER_REQUESTS_REQUEST_TABLE_H_
#define BFIO_ROUTER_REQUESTS_REQUEST_TABLE_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/telemetry/log_fields.h"
#include "router/core/model/request.h"
#include "router/requests/request.h"
#include "router/requests/suspicion.h"
#include "router/requests/tenant_limits.h"
#include "router/requests/token_sink.h"

namespace bfio::router {

struct RequestRecord {
  core::RequestId id = 0;
  ClientRequest request;
  // Null while a resumable request waits for its client to come back.
  std::shared_ptr<TokenSink> sink;
  // Tokens below this index are not for the present stream: its client has them.
  uint32_t send_from = 0;
  // W3C trace context of its newest call; empty: none.
  std::string traceparent;
  // The number of request.tenant.
  uint32_t tenant = 0;
  // The parent it is counted with (agent_calls.h); empty: none.
  std::string parent;
  // What that gave it when it came: the step from which it counts as waiting, and the parent's deadline,
  // microseconds of the router's clock.
  std::optional<int64_t> senior_step;
  int64_t deadline_us = core::RequestSpec::kNoDeadline;
  // Monotonic times.
  absl::Time accepted;
  std::optional<absl::Time> placed;
  std::optional<absl::Time> first_token;
  // Of the newest one; good when first_token is.
  absl::Time last_token;
  int64_t wait_steps = 0;
  // The rank it ran on last, counted over all groups.
  std::optional<uint32_t> last_rank;
  // Tokens that came from its workers: also the index of the next one.
  uint32_t delivered = 0;
  // Of `delivered`: what its client, or an earlier router, had when it came to this one.
  uint32_t had = 0;
  // Of `delivered`: what its client says it has, without proof. To the scheduler it is prompt like any other.
  uint32_t claimed = 0;
  // What `delivered` was when it was placed.
  uint32_t placed_at = 0;
  // The number of the model that its tokens are of, those that its client has included; 0: there are none, or
  // it is not known.
  uint32_t model = 0;
  // Of the model that it was placed on last.
  uint32_t placed_model = 0;
  // Those tokens, kept only where a replay needs them in its prompt, or a resume for its client.
  std::vector<uint32_t> history;
  // What prompt and history are charged with (replay_budget.h).
  int64_t kept_bytes = 0;
  // What overload control counts it for: bytes of its prompt while it has given no token, and the KV it may
  // come to need.
  int64_t waiting_bytes = 0;
  int64_t committed_kv = 0;
  TenantLimiter::Ticket ticket;
  // Prompt and history are gone: it ends with its worker.
  bool forgotten = false;
  // When it is given up for want of its client; counts while there is no stream.
  absl::Time resume_by = absl::InfiniteFuture();
  // It has ended, and is kept for a client that may have missed the end.
  std::optional<Finish> ended;
  // Times in a row that a worker refused it for want of KV (core::RequestSpec::refusals).
  int refusals = 0;
  // Whether it may be the cause of its workers' crashes.
  Suspicion suspicion;
  // The worker that it is placed on has failed; counts when the request is lost.
  bool worker_died = false;

  bool keeps_history() const { return !forgotten && (request.has_prompt_ids() || request.resumable); }
  int64_t history_bytes() const { return int64_t{4} * static_cast<int64_t>(history.size()); }

  // Its id as log lines name it, with its tenant and trace; and the same as fields of a line.
  std::string LogName() const;
  std::vector<LogField> Fields() const;
  // What is still to be done, as the core sees it when it comes in that step: delivered tokens count as
  // prompt.
  core::RequestSpec Spec(int64_t next_step) const;
  // What a worker gets of it. Borrows from the record.
  bfio::router::Assignment MakeAssignment(absl::Time now, bool kv_on_demand) const;
  Finish MakeFinish(FinishReason reason, absl::Time now) const;
};

class RequestTable {
 public:
  // Null, and nothing has changed, when a request in here has the same id, or one of the tenant the same
  // request_id. `sink` may be null.
  RequestRecord* Add(core::RequestId id, ClientRequest request, std::shared_ptr<TokenSink> sink,
                     uint32_t tenant, absl::Time now);
  // Null when unknown. Pointers are good until the record is erased.
  RequestRecord* Find(core::RequestId id);
  const RequestRecord* Find(core::RequestId id) const;
  RequestRecord* FindByName(const std::string& tenant, const std::string& request_id);
  // The one that this stream is of.
  RequestRecord* FindBySink(uint64_t sink_id);
  // The stream that resumed the request; null: none.
  void SetSink(RequestRecord& record, std::shared_ptr<TokenSink> sink);
  void Erase(core::RequestId id);

  size_t size() const { return records_.size(); }
  // Ascending.
  std::vector<core::RequestId> Ids() const;

 private:
  absl::flat_hash_map<core::RequestId, std::unique_ptr<RequestRecord>> records_;
  // By tenant and request_id.
  absl::flat_hash_map<std::pair<std::string, std::string>, core::RequestId> names_;
  absl::flat_hash_map<uint64_t, core::RequestId> sinks_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_REQUEST_TABLE_H_
