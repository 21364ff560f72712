// What an engine's reports say of one of its ranks: requests of other clients, memory that prompts share, and
// whether it works. docs/design/engine-ranks.md has the rules. Pure. Threads: one. Tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "router/group/worker_messages.h"

namespace bfio::router {

class ReportedLoad {
 public:
  // Longer than most steps, and shorter than the interval of GetLoads. Load records come up to once a step.
  static constexpr absl::Duration kWindow = absl::Milliseconds(500);

  // The router's own requests; those that decode, and their tokens.
  struct Own {
    int64_t requests = 0, decoding = 0, decoding_tokens = 0;
  };

  ReportedLoad() = default;
  // `most_others`: bound of others(). `running`: what the engine reports before anything is placed there.
  ReportedLoad(int64_t most_others, int64_t kv_tokens, std::optional<EngineLoad> running = std::nullopt);

  // The engine's report; empty: it sends none, or sent none in time.
  void Take(std::optional<EngineLoad> load, const Own& own, absl::Time now);

  const std::optional<EngineLoad>& last() const { return load_; }
  // The last report shows that the engine has worked since the one before.
  bool works() const { return works_; }
  // The last report that counted all requests of the rank, or the first after a time without any.
  absl::Time complete_at() const { return complete_at_; }
  // Requests of other clients, the least in two windows: a report may count one that has just ended.
  int64_t others() const { return others_; }
  // None while fewer requests are reported than are believed (the second report decides).
  int64_t others_tokens() const {
    return others_ > 0 && load_ && load_->requests > 0 ? others_ * load_->tokens / load_->requests : 0;
  }
  // KV tokens that the rank holds beyond its memory.
  int64_t shared() const { return shared_; }

 private:
  // The smallest value in the present window and the last one.
  class RecentLeast {
   public:
    void BeginWindow() { last_ = std::exchange(present_, std::numeric_limits<int64_t>::max()); }
    int64_t Take(int64_t value) { return std::min(last_, present_ = std::min(present_, value)); }

   private:
    int64_t last_ = 0, present_ = 0;
  };

  int64_t most_others_ = 0, kv_tokens_ = 0;
  std::optional<EngineLoad> load_;
  bool works_ = false;
  absl::Time complete_at_ = absl::InfinitePast(), window_since_ = absl::InfinitePast();
  RecentLeast recent_others_, recent_shared_;
  int64_t others_ = 0, shared_ = 0;
  // For a rank that must not exceed its slots: others in the last report. One report may be older than the
  // most recent own requests, and count too few others.
  std::optional<int64_t> last_others_;
};

}  // namespace bfio::router
