#include "router/engine_link/published/engine_events.h"

#include <utility>

#include "common/base/status_macros.h"
#include "router/engine_link/published/step_metrics.h"

namespace bfio::router {

std::unique_ptr<EngineEvents> EngineEvents::Of(const EngineAddress& engine, std::function<void()> on_steps) {
  if (engine.kv_events == 0 && engine.step_metrics == 0) return nullptr;
  return std::unique_ptr<EngineEvents>(new EngineEvents(engine, std::move(on_steps)));
}

EngineEvents::EngineEvents(const EngineAddress& engine, std::function<void()> on_steps)
    : on_steps_(std::move(on_steps)),
      events_(engine.exact_prefixes),
      messages_(engine.ToString(), engine.server.host, [&] {
        std::vector<RankMessages::Kind> kinds;
        if (engine.kv_events != 0) {
          kinds.push_back({"KV events", engine.kv_events, engine.kv_replay,
                           [this](int32_t rank, uint64_t number, absl::string_view message) {
                             return events_.Take(rank, number, message);
                           }});
        }
        if (engine.step_metrics != 0) {
          kinds.push_back({"step metrics", engine.step_metrics, 0,
                           [this](int32_t rank, uint64_t number, absl::string_view message) {
                             return TakeStep(rank, number, message);
                           }});
        }
        return kinds;
      }()) {}

void EngineEvents::Begin(int32_t rank, int64_t blocks) {
  events_.Begin(rank, blocks);
  {
    MutexLock lock(&mutex_);
    steps_.erase(rank);
  }
  messages_.Follow(rank);
}

absl::Status EngineEvents::TakeStep(int32_t rank, uint64_t number, absl::string_view message) {
  BFIO_ASSIGN_OR_RETURN(EngineStep step, ReadStepMetrics(number, message));
  MutexLock lock(&mutex_);
  const bool told = !steps_.empty();
  if (auto& of = steps_[rank]; of.size() < kMostSteps) of.push_back(std::move(step));
  if (!told) on_steps_();
  return absl::OkStatus();
}

EngineEvents::Steps EngineEvents::TakeSteps() {
  MutexLock lock(&mutex_);
  return std::exchange(steps_, {});
}

}  // namespace bfio::router
