#include "router/requests/renderers.h"

#include <utility>

#include "absl/status/status.h"
#include "common/base/clock.h"

namespace bfio::router {

struct Renderers::Asked {
  explicit Asked(std::shared_ptr<SharedCapacity> calls) : share(std::move(calls)) {}

  PlacedRequest::Call call;
  Done done;
  CapacityShare share;
};

void Renderers::Add(const void* engine, Render render) {
  MutexLock lock(&mutex_);
  engines_.push_back({engine, std::move(render)});
}

void Renderers::Remove(const void* engine) {
  MutexLock lock(&mutex_);
  std::erase_if(engines_, [engine](const auto& one) { return one.engine == engine; });
}

bool Renderers::any() const {
  MutexLock lock(&mutex_);
  return !engines_.empty();
}

void Renderers::Ask(const std::string& tenant, PlacedRequest::Call call, Done done) {
  auto asked = std::make_shared<Asked>(calls_);
  asked->call = std::move(call);
  asked->done = std::move(done);
  if (!asked->share.Take({tenant, ""}, 1))
    return std::move(asked->done)(absl::ResourceExhaustedError("too many prompts are being rendered"));
  AskNext(std::move(asked), /*tries=*/1);
}

void Renderers::AskNext(std::shared_ptr<Asked> asked, int tries) {
  {
    MutexLock lock(&mutex_);
    const absl::Time now = MonotonicNow();
    for (size_t i = 0; i < engines_.size(); ++i) {
      Engine& engine = engines_[next_++ % engines_.size()];
      const bool slow = !engine.calls.empty() && now - *engine.calls.begin() > kSlow;
      if (slow || now < engine.pause_ends) continue;
      engine.calls.insert(now);
      return engine.render(asked->call, [this, asked, tries, now,
                                         at = engine.engine](absl::StatusOr<RenderedPrompt> prompt) mutable {
        Answered(at, now, prompt.status());
        if (absl::IsUnavailable(prompt.status()) && tries > 0) return AskNext(std::move(asked), tries - 1);
        std::move(asked->done)(std::move(prompt));
      });
    }
  }
  std::move(asked->done)(absl::UnavailableError("no engine renders prompts"));
}

void Renderers::Answered(const void* engine, absl::Time asked_at, const absl::Status& status) {
  MutexLock lock(&mutex_);
  for (Engine& one : engines_) {
    if (one.engine != engine) continue;
    if (const auto call = one.calls.find(asked_at); call != one.calls.end()) one.calls.erase(call);
    if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status))
      one.pause_ends = MonotonicNow() + kPause;
  }
}

}  // namespace bfio::router
