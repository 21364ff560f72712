// Every request the router has accepted and not yet ended.
//
// Purpose: what the scheduling core does not need to know: the client's stream, the prompt (for the
// assignment and for a replay), what was delivered, times. Owned by the decision thread; not thread-safe.
#ifndef BFIO_ROUTER_REQUESTS_REQUEST_TABLE_H_
#define BFIO_ROUTER_REQUESTS_REQUEST_TABLE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "bfio/v1/inference.pb.h"
#include "bfio/v1/worker.pb.h"
#include "router/core/model/request.h"
#include "router/frontend/client_stream.h"
#include "router/requests/tenant_limits.h"
#include "router/requests/tenants.h"

namespace bfio::router {

struct RequestRecord {
  core::RequestId id = 0;
  v1::GenerateRequest request;
  // Null while a resumable request waits for its client to come back.
  std::shared_ptr<ClientStream> stream;
  // Tokens below this index are not for the present stream: its client has them.
  uint32_t send_from = 0;
  // W3C trace context of its newest call; empty: none.
  std::string traceparent;
  // The number of request.tenant().
  uint32_t tenant = 0;
  // The parent it is counted with (router/core/agents/parents.h); empty: none.
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
  // The rank that runs it; absent while it waits.
  std::optional<core::WorkerIndex> rank;
  std::optional<core::WorkerIndex> last_rank;
  // Tokens that came from its workers: also the index of the next one.
  uint32_t delivered = 0;
  // Of `delivered`: what its client, or an earlier router, had when it came to this one.
  uint32_t had = 0;
  // What `delivered` was when it was placed.
  uint32_t placed_at = 0;
  // Those tokens, kept only where a replay needs them in its prompt, or a resume for its client.
  std::vector<uint32_t> history;
  // What prompt and history are charged with (replay_budget.h).
  int64_t kept_bytes = 0;
  // What it counts for at the door: bytes of its prompt while it has given no token, and the KV it may come
  // to need.
  int64_t waiting_bytes = 0;
  int64_t committed_kv = 0;
  TenantLimiter::Ticket ticket;
  // Prompt and history are gone: it ends with its worker.
  bool forgotten = false;
  // When it is given up for want of its client; counts while there is no stream.
  absl::Time resume_by = absl::InfiniteFuture();
  // It has ended, and is kept for a client that may have missed the end.
  std::optional<v1::Finish> ended;
  // Times in a row that a worker refused it for want of room (core::RequestSpec::refusals).
  int refusals = 0;
  // Times it was placed again because its worker was lost.
  int replays = 0;

  bool keeps_history() const { return !forgotten && (request.has_token_ids() || request.resumable()); }
  // Bytes of the prompt's ids.
  int64_t prompt_bytes() const { return int64_t{4} * request.token_ids().ids_size(); }
  int64_t history_bytes() const { return int64_t{4} * static_cast<int64_t>(history.size()); }

  // Its id as log lines name it, with its trace.
  std::string LogName() const;
  // What is still to be done, as the core sees it when it comes in that step: delivered tokens count as
  // prompt.
  core::RequestSpec Spec(int64_t next_step) const;
  // The assignment a worker gets for it.
  v1::Assignment Assignment(absl::Time now) const;
  v1::Finish MakeFinish(v1::FinishReason reason, absl::Time now) const;
};

class RequestTable {
 public:
  // Null, and nothing has changed, when a request in here has the same id or request_id. `stream` may be
  // null.
  RequestRecord* Add(core::RequestId id, v1::GenerateRequest request, std::shared_ptr<ClientStream> stream,
                     absl::Time now);
  // Null when unknown. Pointers are good until the record is erased.
  RequestRecord* Find(core::RequestId id);
  // The one that this stream is of.
  RequestRecord* FindByStream(uint64_t stream_id);
  // The stream that the request goes on with; null: none.
  void SetStream(RequestRecord& record, std::shared_ptr<ClientStream> stream);
  RequestRecord* FindByName(const std::string& request_id);
  void Erase(core::RequestId id);

  size_t size() const { return records_.size(); }
  std::vector<core::RequestId> Ids() const;

 private:
  absl::flat_hash_map<core::RequestId, std::unique_ptr<RequestRecord>> records_;
  absl::flat_hash_map<std::string, core::RequestId> names_;
  absl::flat_hash_map<uint64_t, core::RequestId> streams_;
  Tenants tenants_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_REQUEST_TABLE_H_
