// Admission to each worker's KV memory in the router: capacities and needs at future times, for every
// decision.
//
// Purpose: converts the lookahead's predictions into the KvOutlook (model/kv_capacity.h) that all policies
// and the solver's program obey. The kinds:
//   none          a request reserves its prompt and max_new_tokens; there is no outlook.
//   kv_feasible   memory suffices at every future time, with the given confidence.
//   protection    running requests and the prompt stay within a share 1 - alpha of memory (vLLM's watermark).
//                 A request that does not fit an empty worker in this way enters with its largest size
//                 reserved.
//   mc_sf         memory as for kv_feasible; requests begin shortest first.
// Under the latter three a worker may run out of memory; it then preempts the youngest request
// (worker/engine/engine.h). A request that reserves its KV (RequestSpec::reserves_kv) counts with its largest
// size at every time, and enters only where it certainly fits.
//
// docs/design/admission.md derives the tests of kv_feasible and mc_sf, and their cost. Threads: the
// scheduler's. Deterministic. Tokens, steps.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "router/core/admission/kv_books.h"
#include "router/core/admission/mc_sf.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/model/free_capacity.h"
#include "router/core/model/kv_capacity.h"
#include "router/core/model/snapshot.h"

namespace bfio::core {

struct KvAdmissionOptions {
  enum class Kind { kNone, kFeasible, kProtection, kMcSf };
  Kind kind = Kind::kNone;
  // For kv_feasible, and mc_sf with learnt lengths; in [0.5, 1).
  double confidence = 0.99;
  // For protection, in [0, 1).
  double alpha = 0;
  // For mc_sf: steps after which no younger request goes before one that fits, at least 1.
  int64_t most_steps = 256;
  // For mc_sf with known lengths: the share of a prediction by which the length may differ from it, in [0,
  // 100). "Online Scheduling for LLM Inference with KV Cache Constraints" takes the lower end, for which
  // memory may not suffice. All lengths have the same relative error, so either end gives the same order.
  double length_error = 0;
};

// Parses "none", "kv_feasible", "protection:alpha=A" or "mc_sf"; with settings as in
// "kv_feasible:confidence=P" or "mc_sf:most=K,error=E,confidence=P". INVALID_ARGUMENT, naming the error.
absl::StatusOr<KvAdmissionOptions> ParseKvAdmission(absl::string_view text);
// INVALID_ARGUMENT when this lookahead does not make the predictions that admission needs.
absl::Status CheckKvAdmission(const KvAdmissionOptions& options, const Lookahead& lookahead);

class KvAdmission {
 public:
  struct Worker {
    absl::Span<const Resident> residents;
    PlanTime time;
    int64_t kv_tokens = 0;
    // Its load in the plan's step, and the part of that load that no resident accounts for.
    int64_t load_tokens = 0;
    int64_t drift = 0;
    // Whether the worker's capacity is needed; otherwise it is not computed.
    bool open = true;
    // By resident: expected further steps of its prompt beyond the first. Empty: none.
    absl::Span<const int64_t> prompt_steps;
    // What changed since the last MakeOutlook. REQUIRES: not null where keeps_books.
    const KvChanges* changes = nullptr;
  };
  // Expected number of steps, beyond one, for a prompt of that length.
  using StepsOfPrompt = absl::FunctionRef<int64_t(int64_t tokens)>;

  explicit KvAdmission(const KvAdmissionOptions& options) : options_(options), books_(options.length_error) {}

  bool active() const { return options_.kind != KvAdmissionOptions::Kind::kNone; }
  // Whether MakeOutlook reads Worker::changes, and no prompt_steps.
  bool keeps_books(const Lookahead& lookahead) const { return chooses() && !lookahead.learns(); }
  // Whether Choose decides which requests begin.
  bool chooses() const { return options_.kind == KvAdmissionOptions::Kind::kMcSf; }

  // Computes the outlook and sets each waiting request's row of needs (WaitingView::kv_need). The outlook is
  // valid until the next call. REQUIRES: active().
  KvOutlook MakeOutlook(
      Lookahead& lookahead, absl::Span<const Worker> workers, absl::Span<WaitingView> waiting,
      StepsOfPrompt steps_of_prompt = [](int64_t) -> int64_t { return 0; });
  // The indices, ascending, of these requests that begin at `step`; `free` has the remaining capacity of the
  // last outlook. REQUIRES: the last MakeOutlook had these requests; chooses().
  void Choose(int64_t step, const FreeCapacity& free, absl::Span<const WaitingView> waiting,
              std::vector<int32_t>& chosen);

 private:
  // An interval of future time, with theta in units of 1 / tokens.
  struct Interval {
    int64_t from = 0, to = 0;
    double theta = 0;
    // theta is 1 / (mean size) halved this number of times; decay is exp(-theta to).
    int32_t halvings = 0;
    double decay = 0;
  };
  static constexpr int32_t kMostHalvings = 24;
  // Number of ways with Chernoff's bound; theta doubles from one to the next.
  static constexpr int32_t kThetas = 2;
  static constexpr int32_t kWays = 1 + kThetas;
  using Factors = std::array<double, kThetas>;
  // Capacity of a worker that is not computed: no request fits, and no sum overflows.
  static constexpr int64_t kClosed = std::numeric_limits<int64_t>::min() / 4;
  // A need that exceeds every capacity; sums of several do not overflow.
  static constexpr int64_t kMoreThanAny = int64_t{1} << 50;

  void ReadBooks(Lookahead& lookahead, absl::Span<const Worker> workers, absl::Span<WaitingView> waiting,
                 StepsOfPrompt steps_of_prompt);
  // Expected steps of a request that stays at most `stay`, by alive_.
  double Expected(int64_t stay) const;
  // The intervals up to `longest`, each as wide as a share of its distance.
  void Divide(int64_t longest, int64_t near_share, int64_t far_share);
  // Whether a begins before b at `step`.
  bool Before(const WaitingView& a, const WaitingView& b, int64_t step) const;
  bool Overdue(const WaitingView& request, int64_t step) const {
    return step - request.enqueued_step >= options_.most_steps;
  }
  void ReadPrompts(absl::Span<const Worker> workers, absl::Span<WaitingView> waiting);
  void AddAllWaiting(Lookahead& lookahead, absl::Span<WaitingView> waiting, StepsOfPrompt steps_of_prompt);
  void SetIntervals(absl::Span<const Worker> workers, absl::Span<const WaitingView> waiting,
                    StepsOfPrompt steps_of_prompt);
  void AddWorker(const Lookahead& lookahead, const Worker& worker, int64_t* capacity);
  // Writes the needs of a request whose prompt counts as `tokens` and takes `prompt_steps` steps beyond one.
  void AddWaiting(Lookahead& lookahead, const WaitingView& request, int64_t tokens, int64_t prompt_steps,
                  int64_t* need);
  // For a request that holds `tokens` at the plan's step, may stay `stay` steps, and `late` steps longer if
  // it starts later than planned: calls use(interval, x, factors) for each interval that it may reach, after
  // alive_ is set. factors[j] is (1 + p (exp(theta_j x) - 1)) / exp(theta_j x), with the theta of the j-th
  // way.
  template <class Use>
  void ForEachInterval(int64_t tokens, int64_t stay, int64_t late, Use use) const;

  // What the needs of a waiting request depend on.
  struct RequestKind {
    uint64_t curve = 0;
    int64_t tokens = 0, generated = 0, most = 0, predicted = 0;
    bool reserves = false;

    friend bool operator==(const RequestKind&, const RequestKind&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const RequestKind& of) {
      return H::combine(std::move(h), of.curve, of.tokens, of.generated, of.most, of.predicted, of.reserves);
    }
  };

  const KvAdmissionOptions options_;
  KvBooks books_;
  // By row of needs, for mc_sf: expected tokens.
  std::vector<double> lengths_;
  // By waiting request, where lengths are known: steps that it stays, and that it may stay longer.
  std::vector<std::pair<int64_t, int64_t>> stays_;
  // Entries per interval in the last MakeOutlook.
  int32_t ways_ = kWays;
  // Scratch of Choose.
  FreeCapacity free_;
  std::vector<int32_t> heap_;
  absl::flat_hash_map<RequestKind, int32_t> kinds_;
  std::vector<Interval> intervals_;
  // Start of each interval, and the probability that a request is active there.
  std::vector<int64_t> starts_;
  std::vector<double> alive_;
  // log(1 / e).
  double log_risk_ = 0;
  std::vector<int64_t> capacity_, need_;
  // Scratch space of AddWorker, by interval: sum of x; sum of logarithms; a product whose logarithm is still
  // to be added.
  std::vector<int64_t> held_;
  std::vector<Factors> logs_, product_;
};

}  // namespace bfio::core
