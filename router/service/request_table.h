// Every request the router has accepted and not yet ended.
//
// Purpose: what the scheduling core does not need to know: the client's stream, the prompt (for the
// assignment and for a replay), what was delivered, times. Owned by the decision thread; not thread-safe.
#ifndef BFIO_ROUTER_SERVICE_REQUEST_TABLE_H_
#define BFIO_ROUTER_SERVICE_REQUEST_TABLE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "bfio/v1/inference.pb.h"
#include "bfio/v1/worker.pb.h"
#include "router/core/model/request.h"
#include "router/service/client_stream.h"
#include "router/service/tenants.h"

namespace bfio::router {

struct RequestRecord {
  core::RequestId id = 0;
  v1::GenerateRequest request;
  std::shared_ptr<ClientStream> stream;
  // The number of request.tenant().
  uint32_t tenant = 0;
  // Monotonic times.
  absl::Time accepted;
  std::optional<absl::Time> placed;
  std::optional<absl::Time> first_token;
  int64_t wait_steps = 0;
  // The rank that runs it; absent while it waits.
  std::optional<core::WorkerIndex> rank;
  std::optional<core::WorkerIndex> last_rank;
  // Tokens handed to the client's stream: also the index of the next one.
  uint32_t delivered = 0;
  // Those tokens, kept only where a replay needs them in its prompt.
  std::vector<uint32_t> history;
  // Times a worker refused it for want of room.
  int refusals = 0;
  // Times it was placed again because its worker was lost.
  int replays = 0;

  // What is still to be done, as the core sees it: delivered tokens count as prompt.
  core::RequestSpec Spec() const;
  // The assignment a worker gets for it.
  v1::Assignment Assignment() const;
  v1::Finish MakeFinish(v1::FinishReason reason, absl::Time now) const;
};

class RequestTable {
 public:
  // Null when a live request has the same request_id.
  RequestRecord* Add(core::RequestId id, v1::GenerateRequest request, std::shared_ptr<ClientStream> stream,
                     absl::Time now);
  // Null when unknown. Pointers are good until the record is erased.
  RequestRecord* Find(core::RequestId id);
  RequestRecord* FindByName(const std::string& request_id);
  void Erase(core::RequestId id);

  size_t size() const { return records_.size(); }
  std::vector<core::RequestId> Ids() const;

 private:
  absl::flat_hash_map<core::RequestId, std::unique_ptr<RequestRecord>> records_;
  absl::flat_hash_map<std::string, core::RequestId> names_;
  Tenants tenants_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_SERVICE_REQUEST_TABLE_H_
