#include "router/core/policy/bf_io/bf_io.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "router/core/policy/snapshot_instance.h"

namespace bfio::core {
namespace {

// From sweeps on the Azure conversation and BurstGPT traces (docs/design/decision.md); results are flat
// around these values.
constexpr double kStockTilt = 1;
constexpr double kAgeWeight = 0.1;
constexpr double kAgeSquaredWeight = 0.003;
constexpr double kOverdueAges = 12;
constexpr double kOversized = 5;
// One of this many workers is reserved at a time; smaller groups reserve none.
constexpr size_t kWorkersPerPreparing = 8;
constexpr size_t kLeastPreparingGroup = 4;

}  // namespace

void BfIoPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  if (free_.free_slots() == 0 || snapshot.waiting.empty()) return;
  FillInstance(snapshot, free_, horizon_, instance_);
  SetDiscounts();
  if (settings_.objective != ObjectiveKind::kPaper) {
    valuation_.Apply(snapshot, instance_);
    ScaleWeights();
  }
  const Solution& solution = solver_.Solve(instance_, stop_);
  decision.stopped_early = solver_.statistics().CutShort();
  for (int32_t i = 0; i < static_cast<int32_t>(solution.worker_of.size()); ++i) {
    if (solution.worker_of[i] != kUnassigned) decision.assignments.push_back({i, solution.worker_of[i]});
  }
}

void BfIoPolicy::SetDiscounts() {
  double discount = 1;
  for (int32_t h = 0; instance_.horizon > 0 && h < instance_.steps(); ++h, discount *= discount_)
    instance_.discount.push_back(discount);
}

// Weights are scaled for the squares of one step; a horizon has the squares of several.
void BfIoPolicy::ScaleWeights() {
  if (instance_.horizon == 0) return;
  double steps = 0;
  for (int32_t h = 0; h < instance_.steps(); ++h) steps += instance_.Discount(h);
  for (SolverItem& item : instance_.items) item.weight *= steps;
}

absl::StatusOr<SolverSettings> BfIoSettings(const PolicyOptions& options) {
  if (options.horizon < 0 || options.horizon > kMaxHorizon) {
    return absl::InvalidArgumentError(
        absl::StrCat("bf_io: horizon ", options.horizon, " must lie between 0 and ", kMaxHorizon));
  }
  if (!(options.discount > 0 && options.discount <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("bf_io: discount ", options.discount, " must be above 0 and at most 1"));
  }
  SolverSettings settings;
  if (options.objective == "paper") {
    settings.objective = ObjectiveKind::kPaper;
  } else if (options.objective == "square") {
    settings.objective = ObjectiveKind::kSquare;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("bf_io: objective '", options.objective, "' is unknown, choose paper or square"));
  }
  return settings;
}

void Valuation::Apply(const Snapshot& snapshot, Instance& instance) {
  const PoolScale scale = MeasurePool(snapshot.waiting);
  const double typical_age = TypicalAge(snapshot);
  const double rate = instance.MeanRate(), deviation = scale.deviation;
  for (size_t i = 0; i < instance.items.size(); ++i) {
    const double age = static_cast<double>(Age(snapshot.waiting[i])), r = age / typical_age;
    instance.items[i].weight =
        rate * rate *
        (kLeastAgeWeight * age + deviation * deviation * (kAgeWeight * r + kAgeSquaredWeight * r * r));
  }
  level_ = level_workers_.Find(snapshot.workers);
  if (level_.empty()) return;
  std::stable_sort(level_.begin(), level_.end(), [&](WorkerIndex a, WorkerIndex b) {
    return snapshot.workers[a].load_tokens < snapshot.workers[b].load_tokens;
  });
  Prepare(snapshot, typical_age, instance);
  instance.target_load = LevelTarget(instance, level_, scale.mean - kStockTilt * scale.deviation);
}

double Valuation::TypicalAge(const Snapshot& snapshot) {
  // By arrival, not by seniority: a call that counts as younger because of its parent must not make all
  // others count as old.
  youngest_ = snapshot.waiting[0].enqueued_step;
  for (const WaitingView& request : snapshot.waiting) youngest_ = std::max(youngest_, request.enqueued_step);
  ages_.clear();
  for (const WaitingView& request : snapshot.waiting) ages_.push_back(Age(request));
  // With service in order of arrival, ages would be uniform and the mean twice the lower quartile. The
  // requests that wait for a gap hardly change the lower quartile.
  const auto quartile = ages_.begin() + static_cast<int64_t>((ages_.size() - 1) / 4);
  std::nth_element(ages_.begin(), quartile, ages_.end());
  return std::max(1.0, 2 * static_cast<double>(*quartile));
}

void Valuation::Prepare(const Snapshot& snapshot, double typical_age, Instance& instance) {
  int64_t load = 0, active = 0;
  for (WorkerIndex g : level_) {
    load += snapshot.workers[g].load_tokens;
    active += snapshot.workers[g].active;
  }
  if (active == 0) return;
  const int64_t slot_load = load / active;
  const size_t most =
      level_.size() < kLeastPreparingGroup ? 0 : (level_.size() - 1) / kWorkersPerPreparing + 1;
  oversized_.clear();
  for (size_t i = 0; i < snapshot.waiting.size() && oversized_.size() < most; ++i) {
    const WaitingView& request = snapshot.waiting[i];
    // A lower class gets no slot now, even with a reserved worker.
    if (request.priority < snapshot.waiting[0].priority) break;
    if (static_cast<double>(Age(request)) <= kOverdueAges * typical_age) continue;
    if (static_cast<double>(request.prefill_tokens) > kOversized * static_cast<double>(slot_load)) {
      oversized_.push_back(static_cast<int32_t>(i));
    }
  }
  // The largest request gets the least loaded worker, so that this worker stays reserved for the same
  // request.
  std::stable_sort(oversized_.begin(), oversized_.end(), [&](int32_t a, int32_t b) {
    return snapshot.waiting[a].prefill_tokens > snapshot.waiting[b].prefill_tokens;
  });
  for (size_t i = 0; i < oversized_.size(); ++i) {
    SolverItem& oversized = instance.items[oversized_[i]];
    oversized.reserved_worker = level_[i];
    oversized.precounted_tokens = oversized.load - slot_load;
    instance.workers[oversized.reserved_worker].load_tokens += oversized.precounted_tokens;
  }
}

}  // namespace bfio::core
