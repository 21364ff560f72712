// A worker that keeps the group's barrier and breaks the router's protocol.
//
// Purpose: step loop, engine, barrier and stream are the real ones; what the step loop hands to the stream is
// changed on its way, so that the router meets a liar from inside the group. Its lies never claim a wrong
// token for a request that it holds and may still make tokens for: nobody but the worker can know those.
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
absl::string_view NameOf(Misbehavior lie);

class MisbehavingWorker {
 public:
  // Joins at once; begins to lie after some twenty steps.
  MisbehavingWorker(const std::string& router, const std::string& barrier_host, const std::string& id,
                    Misbehavior lie, const worker::SimOptions& engine);
  // Leaves without a word, as a worker does that dies.
  ~MisbehavingWorker();

  // Reports of its that were changed: none before the group has taken it in.
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
