// Which tokens a prompt has, where the router sees only its text: engines that say it are asked, in turn. An
// edge of engines adds them, an edge of clients asks. An engine that is slow, or does not answer, is left out
// for a while, so that it delays few. Ownership: shared by both. Threads: any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/fair_share.h"
#include "common/base/mutex.h"
#include "router/requests/placed_request.h"

namespace bfio::router {

struct RenderedPrompt {
  std::vector<uint32_t> tokens;
  // The tokens do not say all: it has images, or the like.
  bool has_media = false;
};

class Renderers {
 public:
  // Calls under way, with a share for each tenant: more texts are not worth a wait.
  static constexpr int64_t kMostCalls = 128;
  // An engine is not asked while a call has been under way for longer, and for a while after one had no
  // answer.
  static constexpr absl::Duration kSlow = absl::Milliseconds(100), kPause = absl::Seconds(10);
  using Done = absl::AnyInvocable<void(absl::StatusOr<RenderedPrompt>) &&>;
  // Must not block. `done` is called once, on another thread.
  using Render = std::function<void(const PlacedRequest::Call& call, Done done)>;

  void Add(const void* engine, Render render);
  // When it returns, the engine is no longer asked.
  void Remove(const void* engine);
  // Whether any engine can be asked.
  bool any() const;
  // `done` gets an error where there is none to ask, where none of two answers, and beyond the tenant's
  // share.
  void Ask(const std::string& tenant, PlacedRequest::Call call, Done done);

 private:
  struct Asked;
  struct Engine {
    const void* engine = nullptr;
    Render render;
    // When its calls began that are under way; when it may be asked again.
    std::multiset<absl::Time> calls = {};
    absl::Time pause_ends = absl::InfinitePast();
  };

  // Asks the next one; `tries` may follow.
  void AskNext(std::shared_ptr<Asked> asked, int tries);
  void Answered(const void* engine, absl::Time asked_at, const absl::Status& status);

  const std::shared_ptr<SharedCapacity> calls_ = std::make_shared<SharedCapacity>(kMostCalls);
  mutable Mutex mutex_;
  std::vector<Engine> engines_ ABSL_GUARDED_BY(mutex_);
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace bfio::router
