#include "router/core/policy/bf_io_auto/horizon.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace bfio::core {
namespace {

// Beyond this, log(1 + exp(x)) is x.
constexpr double kLinear = 30;

// Sum of exp(-h / r) over the h that are nearer, by the ratio, to steps[k] than to its neighbours.
double WeightOf(absl::Span<const int64_t> steps, size_t k, double r) {
  const auto between = [](int64_t a, int64_t b) {
    return std::max(static_cast<double>(a) + 0.5, std::sqrt(static_cast<double>(a) * static_cast<double>(b)));
  };
  const double from = k == 0 ? 0 : between(steps[k - 1], steps[k]);
  if (k + 1 == steps.size()) return r * std::exp(-from / r);
  return r * (std::exp(-from / r) - std::exp(-between(steps[k], steps[k + 1]) / r));
}

}  // namespace

void ExpectedSteps::Reset(absl::Span<const WorkerView> workers, const FarOutlook& far) {
  knots_ = far.steps.size();
  rates_.clear();
  double rate = 0;
  for (const WorkerView& worker : workers) {
    rates_.push_back({worker.time_per_token, worker.prefill_weight});
    rate += worker.time_per_token / static_cast<double>(workers.size());
  }
  const double spread = std::sqrt(2 * std::log(std::max<double>(2, static_cast<double>(workers.size()))));
  weight_.resize(knots_);
  tau_.resize(knots_);
  largest_.resize(knots_);
  gap_.resize(workers.size() * knots_);
  slope_.resize(gap_.size());
  for (size_t k = 0; k < knots_; ++k) {
    weight_[k] = WeightOf(far.steps, k, far.mean_stay);
    // A token at least: the present loads are known.
    tau_[k] = rate * std::max(1.0, std::sqrt(far.variance[k]) / spread);
    double most = 0, sum = 0;
    for (size_t g = 0; g < workers.size(); ++g) {
      double& time = gap_[g * knots_ + k];
      time = workers[g].TimeAt(far.load[g * knots_ + k]);
      most = g == 0 ? time : std::max(most, time);
    }
    for (size_t g = 0; g < workers.size(); ++g) sum += std::exp((gap_[g * knots_ + k] - most) / tau_[k]);
    largest_[k] = most + tau_[k] * std::log(sum);
    for (size_t at = k; at < gap_.size(); at += knots_) {
      gap_[at] = (gap_[at] - largest_[k]) / tau_[k];
      slope_[at] = std::exp(gap_[at]);
    }
  }
}

double ExpectedSteps::Value() const {
  return std::inner_product(weight_.begin(), weight_.end(), largest_.begin(), 0.0);
}

double ExpectedSteps::RaiseAt(size_t k, WorkerIndex g, double more) const {
  const double slope = slope_[At(g, k)], by = more / tau_[k];
  if (by < 1) return tau_[k] * std::log1p(slope * std::expm1(by));
  const double with = gap_[At(g, k)] + by;
  return tau_[k] * (with > kLinear ? with : std::log1p(std::exp(with) - slope));
}

double ExpectedSteps::Raise(const Request& request, WorkerIndex g) const {
  double raise = 0;
  for (size_t k = 0; k < knots_; ++k) raise += weight_[k] * RaiseAt(k, g, TimeOf(request, g, k));
  return raise;
}

double ExpectedSteps::LeastRaise(const Request& request, WorkerIndex g) const {
  const double* const slope = &slope_[At(g, 0)];
  double raise = 0;
  for (size_t k = 0; k < knots_; ++k) raise += weight_[k] * slope[k] * TimeOf(request, g, k);
  return raise;
}

void ExpectedSteps::Add(const Request& request, WorkerIndex g) {
  for (size_t k = 0; k < knots_; ++k) {
    const double more = TimeOf(request, g, k), raise = RaiseAt(k, g, more);
    largest_[k] += raise;
    const double less = raise / tau_[k], shrink = std::exp(-less);
    for (size_t at = k; at < gap_.size(); at += knots_) {
      gap_[at] -= less;
      slope_[at] *= shrink;
    }
    gap_[At(g, k)] += more / tau_[k];
    slope_[At(g, k)] = std::exp(gap_[At(g, k)]);
  }
}

bool Horizon::Place(const Snapshot& snapshot, FreeCapacity& free, std::vector<Assignment>& plan) {
  order_.resize(snapshot.waiting.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
    return snapshot.waiting[a].prefill_tokens > snapshot.waiting[b].prefill_tokens;
  });
  const FarOutlook& far = snapshot.far;
  const size_t knots = far.steps.size();
  steps_.Reset(free.views(), far);
  request_.tokens.resize(knots);
  request_.prompt.resize(knots);
  for (const int32_t i : order_) {
    const WaitingView& request = snapshot.waiting[i];
    const auto prompt = static_cast<double>(request.prefill_tokens);
    for (size_t k = 0; k < knots; ++k) {
      const double stays = far.curves[static_cast<size_t>(far.curve_of[i]) * knots + k];
      request_.tokens[k] = stays * (prompt + static_cast<double>(far.steps[k]));
      request_.prompt[k] = stays * prompt;
    }
    const WorkerIndex worker = Choose(free, request);
    if (worker == kNoWorker) return false;
    free.Take(request, worker);
    plan.push_back({i, worker});
    steps_.Add(request_, worker);
  }
  return true;
}

WorkerIndex Horizon::Choose(const FreeCapacity& free, const WaitingView& request) {
  bounds_.clear();
  for (WorkerIndex g = 0; g < free.workers(); ++g) {
    if (free.Fits(request, g)) bounds_.push_back({steps_.LeastRaise(request_, g), g});
  }
  Bound best{0, kNoWorker};
  // From the lowest bound on.
  const auto above = [](const Bound& a, const Bound& b) { return b < a; };
  std::make_heap(bounds_.begin(), bounds_.end(), above);
  while (!bounds_.empty() && (best.worker == kNoWorker || bounds_.front().raise < best.raise)) {
    std::pop_heap(bounds_.begin(), bounds_.end(), above);
    const Bound exact{steps_.Raise(request_, bounds_.back().worker), bounds_.back().worker};
    bounds_.pop_back();
    if (best.worker == kNoWorker || exact < best) best = exact;
  }
  return best.worker;
}

}  // namespace bfio::core
