// Predictors of completions behind one interface: which requests are still active h steps ahead. The
// scheduler passes to a Lookahead how long requests have run and which have ended. It queries the expected
// load of each worker 1 .. H steps ahead, and how long a waiting request may run (model/snapshot.h, Outlook).
// Ownership: owned by the scheduler; residents are borrowed for the call. Threads: the scheduler's (one). No
// I/O, no clock. Deterministic: the same calls in the same order give the same bits.
//
// Terms. A request with o tokens to generate that first runs in step f runs in the steps f .. f + o - 1. Its
// age is the number of tokens that it has generated. It is active after step r when it has not ended by then;
// at step p it is active iff o > age at p.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "router/core/model/request.h"
#include "router/core/model/snapshot.h"

namespace bfio::core {

// Largest horizon, in steps.
inline constexpr int32_t kMaxHorizonSteps = 500;

// Resident::hint_bin of a request without a hint.
inline constexpr uint8_t kNoHint = 255;

// A request that a worker runs or will run. One cache line, because a projection reads all of them.
struct Resident {
  RequestId id = 0;
  // The first step in which it runs; while in flight, the step that its plan is for.
  int64_t first_step = 0;
  // s: tokens that it holds in that step.
  int64_t prefill_tokens = 0;
  // Its age in that step: tokens generated in earlier placements.
  int64_t generated_tokens = 0;
  // The largest and the expected number of tokens in this placement (equal without a prediction).
  int64_t max_new_tokens = 1;
  int64_t expected_tokens = 1;
  uint32_t tenant = 0;
  // The lookahead's number of its class (Lookahead::GroupOf).
  int32_t group = 0;
  // Age at the last hint, and the bin of that hint; set by the lookahead.
  int32_t hint_age = 0;
  uint8_t hint_bin = kNoHint;
  // The KV memory of its largest size is reserved from its first step on (RequestSpec::reserves_kv).
  bool reserves_kv = false;
  // Planned, and not acknowledged by its worker.
  bool inflight = false;
  // Its worker drops it before the plan's step.
  bool dropped = false;
};

// The hints whose outcomes are awaited, one per lag, with their ages; set by the lookahead and stored beside
// the resident.
struct HintTrail {
  static constexpr int kProbes = 7;
  uint8_t bin[kProbes] = {kNoHint, kNoHint, kNoHint, kNoHint, kNoHint, kNoHint, kNoHint};
  int32_t age[kProbes] = {};
};

// The step at which a projection starts, and the last step that has been reported.
struct PlanTime {
  int64_t reported_step = 0;
  int64_t plan_step = 1;
};

// A resident's state at a PlanTime.
struct Progress {
  // Number of tokens that it is known to have generated; it was active after that.
  int64_t known_age = 0;
  // Its age at the plan's step if it is still active then.
  int64_t plan_age = 0;
  // Tokens that it holds at the plan's step in that case.
  int64_t tokens = 0;
  // Steps until max_new_tokens ends it, from the plan's step on; 0 or less: it will have ended by then.
  int64_t steps_left = 0;
};

inline Progress ProgressOf(const Resident& resident, const PlanTime& time) {
  // A late plan starts its requests in the next step at the earliest.
  const int64_t first =
      resident.inflight ? std::max(resident.first_step, time.reported_step + 1) : resident.first_step;
  const int64_t ahead = std::max<int64_t>(0, time.plan_step - first);
  const int64_t run = std::clamp<int64_t>(time.reported_step + 1 - first, 0, ahead);
  return {resident.generated_tokens + run, resident.generated_tokens + ahead, resident.prefill_tokens + ahead,
          resident.max_new_tokens - ahead};
}

class Lookahead {
 public:
  virtual ~Lookahead() = default;

  // The name under which it is registered.
  virtual absl::string_view name() const = 0;

  // False: it makes no predictions; Project, Curve and Lifetime must not be called.
  virtual bool predicts() const { return true; }
  // Whether the scheduler has to call Observe and Hint.
  virtual bool learns() const { return false; }
  virtual bool uses_hints() const { return false; }

  // --- learning ---

  // The class of requests of this tenant with prompts of this length.
  virtual int32_t GroupOf(uint32_t tenant, int64_t prompt_tokens) { return 0; }

  // The request could have ended with each of its tokens from + 1 .. to. It ended with token `to` if
  // `finished`, and with none of them otherwise. When max_new_tokens ends a request, it could not have ended
  // by itself with its last token. `trail` belongs to the resident.
  virtual void Observe(const Resident& resident, const HintTrail& trail, int64_t from, int64_t to,
                       bool finished) {}

  // The worker reports, after token number `age`, this probability that the next token ends the request.
  virtual void Hint(Resident& resident, HintTrail& trail, int64_t age, double probability) {}

  // All workers have reported another step, so observations may be applied now.
  virtual void Advance() {}

  // --- predictions; rows have H + 1 entries, entry h is for the plan's step + h ---

  // Expected load of one worker in tokens.
  virtual void Project(absl::Span<const Resident> residents, const PlanTime& time,
                       absl::Span<double> load) = 0;

  // Requests with equal keys have equal curves (Curve), and stay equally long (Lifetime), within the horizon.
  virtual uint64_t CurveKey(const WaitingView& request, int32_t horizon) = 0;

  // Probability that a request started at the plan's step is active h steps later; row[0] = 1.
  virtual void Curve(const WaitingView& request, absl::Span<double> row) = 0;

  // How long a resident, or a request started at the plan's step, may stay. Returns the number of steps from
  // the plan's step on after which it has certainly ended (0: it has ended by then). Fills alive[k] with the
  // probability that it is active `steps[k]` steps after the plan's, for every steps[k] below that number.
  // Beyond the reach of its tables a lookahead may overestimate these probabilities, never underestimate
  // them. REQUIRES: `steps` ascend from 0.
  virtual int64_t Lifetime(const Resident& resident, const PlanTime& time, absl::Span<const int64_t> steps,
                           absl::Span<double> alive) const = 0;
  virtual int64_t Lifetime(const WaitingView& request, absl::Span<const int64_t> steps,
                           absl::Span<double> alive) = 0;
};

// Settings of all lookaheads; each ignores those that do not concern it.
struct LookaheadOptions {
  // survival, hint: number of recent completed requests that determine the estimate of a class (the decay is
  // exponential, with this mean). Large enough for a curve of a hundred bins, small enough to follow a day's
  // drift.
  double memory_requests = 4096;
  // Mean length assumed before any observation, in tokens (public chat traces: 200 to 260).
  double prior_mean_tokens = 256;
  // Weight of that assumption, and of the class above (all requests for a tenant, the tenant for its prompts
  // of one length), against a class's own data; both in completed requests.
  double prior_requests = 1;
  double pool_requests = 6;
  // Number of tenants with their own curves; the others share one set.
  int32_t max_groups = 64;
  // Ages below twice this have bins of width one, older ones a relative width of 1 / this. A power of two.
  int32_t ages_per_octave = 16;
};

struct LookaheadInfo {
  absl::string_view name;
  // One sentence for --help.
  absl::string_view summary;
};

// All registered lookaheads, in the order in which --help lists them.
const std::vector<LookaheadInfo>& RegisteredLookaheads();

// INVALID_ARGUMENT, with the known lookaheads or the wrong setting in the message.
absl::StatusOr<std::unique_ptr<Lookahead>> MakeLookahead(absl::string_view name,
                                                         const LookaheadOptions& options = {});

}  // namespace bfio::core
