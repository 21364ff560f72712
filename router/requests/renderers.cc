#include "router/requests/renderers.h"

#include <utility>

#include "absl/status/status.h"

namespace bfio::router {

struct Renderers::Asked {
  explicit Asked(std::shared_ptr<SharedCapacity> calls) : share(std::move(calls)) {}

  PlacedRequest::Call call;
  Done done;
  CapacityShare share;
};

void Renderers::Add(const void* engine, Render render) {
  MutexLock lock(&mutex_);
  engines_.emplace_back(engine, std::move(render));
}

void Renderers::Remove(const void* engine) {
  MutexLock lock(&mutex_);
  std::erase_if(engines_, [engine](const auto& one) { return one.first == engine; });
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
    if (!engines_.empty()) {
      const Render& render = engines_[next_++ % engines_.size()].second;
      return render(asked->call, [this, asked, tries](absl::StatusOr<RenderedPrompt> prompt) mutable {
        if (absl::IsUnavailable(prompt.status()) && tries > 0) return AskNext(std::move(asked), tries - 1);
        std::move(asked->done)(std::move(prompt));
      });
    }
  }
  std::move(asked->done)(absl::UnavailableError("no engine renders prompts"));
}

}  // namespace bfio::router
