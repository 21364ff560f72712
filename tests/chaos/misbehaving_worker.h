// A worker that keeps the group's barrier and breaks the router's protocol.
//
// Purpose: step loop, engine, barrier and stream are the real ones. The reports are changed before the stream
// sends them, so the router gets protocol violations from a member of the group. They never contain a wrong
// token for a request that the worker holds and may still generate tokens for: only the worker has those.
// Threads: two of its own; the methods belong to the owner's.
#ifndef BFIO_TESTS_CHAOS_MISBEHAVING_WORKER_H_
#define BFIO_TESTS_CHAOS_MISBEHAVING_WORKER_H_

#include <memory>
#include <string>
#include <thread>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "worker/engine/sim/sim_engine.h"
#include "worker/link/router_link.h"
#include "worker/link/step_loop.h"

namespace bfio::chaos {

enum class Misbehavior {
  kSkipStep,        // a step number that does not follow
  kStaleEpoch,      // reports of an epoch long gone, among the right ones
  kFutureEpoch,     // and of one to come
  kUnknownHandles,  // tokens, ends and refusals of requests that do not exist
  kEndedHandles,    // ... of requests that have ended
  kNegativeLoad,    // counts below 0, as large numbers on the wire
  kOverlong,        // tokens beyond a request's last
  kUnplanned,       // acknowledges a plan that was never made
  kDuplicate,       // every report twice
  kOutOfOrder,      // two reports swapped
};
inline constexpr int kMisbehaviors = static_cast<int>(Misbehavior::kOutOfOrder) + 1;
absl::string_view NameOf(Misbehavior misbehavior);

class MisbehavingWorker {
 public:
  // Joins at once; misbehaves after some twenty steps.
  MisbehavingWorker(const std::string& router, const std::string& barrier_host, const std::string& id,
                    Misbehavior misbehavior, const worker::SimOptions& engine);
  // Leaves without a message, like a worker that crashes.
  ~MisbehavingWorker();

  // Number of changed reports: 0 before it has joined a group.
  int64_t altered_reports() const;

 private:
  class AlteredLink;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<worker::RouterLink> link_;
  std::unique_ptr<AlteredLink> altered_link_;
  std::unique_ptr<worker::StepLoop> loop_;
  std::thread loop_thread_, link_thread_;
};

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_MISBEHAVING_WORKER_H_
