// Whether ranks with a declared barrier take their steps together.
//
// Purpose: a declared barrier (`?barrier=`) that does not exist makes the router delay prompts without
// effect. While ranks decode without a pause, a barrier gives all of them the same number of steps. Steps are
// counted over the ranks that decode, from the time when the last of them began, until one has kSteps.
// kWindows such counts in a row that differ by more than kShare mean that there is no barrier. Ranks without
// a barrier that happen to step equally fast are not detected. Pure. Threads: one. Steps.
#ifndef BFIO_ROUTER_ENGINE_LINK_BARRIER_WATCH_H_
#define BFIO_ROUTER_ENGINE_LINK_BARRIER_WATCH_H_

#include <cstdint>
#include <map>
#include <string>

namespace bfio::router {

class BarrierWatch {
 public:
  static constexpr int64_t kSteps = 128;
  static constexpr int kWindows = 3;
  // Inferred steps are sometimes split when a token comes late.
  static constexpr double kShare = 0.25;

  // The rank has ended a step with tokens; `decodes`: a request of it decodes in the next step, too.
  void OnStep(uint64_t rank, bool decodes);
  // The rank has no requests, or is gone.
  void OnIdle(uint64_t rank);

  // The fault, once; empty: none, or it was reported.
  std::string TakeWarning();

 private:
  void StartOver();

  // Steps of the ranks that decode.
  std::map<uint64_t, int64_t> steps_;
  int apart_ = 0;
  int64_t most_ = 0, fewest_ = 0;
  bool told_ = false;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ENGINE_LINK_BARRIER_WATCH_H_
