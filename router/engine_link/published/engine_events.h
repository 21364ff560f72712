// What the ranks of an engine publish beside its calls, whatever its protocol: KV events (kv_events.h) and
// step metrics (step_metrics.h), as its entry of --config says. Ownership: an engine's server; owns a thread.
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "common/base/mutex.h"
#include "router/engine_link/engine_list.h"
#include "router/engine_link/engine_steps.h"
#include "router/engine_link/published/kv_events.h"
#include "router/engine_link/published/rank_messages.h"
#include "router/group/worker_messages.h"

namespace bfio::router {

class EngineEvents {
 public:
  // Of each rank, until they are taken; later ones are dropped.
  static constexpr size_t kMostSteps = 64;
  using Steps = std::map<int32_t, std::vector<EngineStep>>;

  // Null: the engine publishes nothing. `on_steps`: there are steps to take; not called again before that.
  static std::unique_ptr<EngineEvents> Of(const EngineAddress& engine, std::function<void()> on_steps);

  // From now on the rank, by the engine's number, which has so many blocks, is followed, and its cache is
  // told from its beginning.
  void Begin(int32_t rank, int64_t blocks);
  // KvEvents::TakeChanges.
  void TakeChanges(int32_t rank, EngineLoad& load) { events_.TakeChanges(rank, load); }
  Steps TakeSteps();

 private:
  EngineEvents(const EngineAddress& engine, std::function<void()> on_steps);

  absl::Status TakeStep(int32_t rank, uint64_t number, absl::string_view message);

  const std::function<void()> on_steps_;
  KvEvents events_;
  Mutex mutex_;
  Steps steps_ ABSL_GUARDED_BY(mutex_);
  // Its thread uses what is above.
  RankMessages messages_;
};

}  // namespace bfio::router
