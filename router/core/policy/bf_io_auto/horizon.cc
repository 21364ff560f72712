#include "router/core/policy/bf_io_auto/horizon.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "router/core/policy/least_first.h"

namespace bfio::core {
namespace {

// Requests between two looks at the deadline: some 10 us in the largest groups.
constexpr size_t kHorizonStopEvery = 8;
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
  for (std::vector<double>* of : {&weight_, &tau_, &largest_, &scale_, &by_, &grown_, &steep_, &flat_}) {
    of->resize(knots_);
  }
  gap_.resize(workers.size() * knots_);
  slope_.resize(gap_.size());
  less_.assign(knots_, 0);
  shrink_.assign(knots_, 1);
  for (size_t k = 0; k < knots_; ++k) {
    weight_[k] = WeightOf(far.steps, k, far.mean_stay);
    // A token at least: the present loads are known.
    tau_[k] = rate * std::max(1.0, std::sqrt(far.variance[k]) / spread);
    scale_[k] = weight_[k] * tau_[k];
    double most = 0, sum = 0;
    for (size_t g = 0; g < workers.size(); ++g) {
      double& time = gap_[g * knots_ + k];
      time = workers[g].TimeAt(far.load[g * knots_ + k]);
      most = g == 0 ? time : std::max(most, time);
    }
    for (size_t at = k; at < gap_.size(); at += knots_) {
      slope_[at] = std::exp((gap_[at] - most) / tau_[k]);
      sum += slope_[at];
    }
    largest_[k] = most + tau_[k] * std::log(sum);
    for (size_t at = k; at < gap_.size(); at += knots_) {
      gap_[at] = (gap_[at] - largest_[k]) / tau_[k];
      slope_[at] /= sum;
    }
  }
}

double ExpectedSteps::Value() const {
  return std::inner_product(weight_.begin(), weight_.end(), largest_.begin(), 0.0);
}

void ExpectedSteps::Open(const Request& request) {
  request_ = &request;
  prepared_ = false;
}

void ExpectedSteps::TakeRate(const Rate& rate) {
  if (prepared_ && rate == rate_) return;
  rate_ = rate;
  prepared_ = true;
  exponentials_ = false;
  for (size_t k = 0; k < knots_; ++k) {
    by_[k] = (rate.token * request_->tokens[k] + rate.prompt * request_->prompt[k]) / tau_[k];
    steep_[k] = scale_[k] * shrink_[k] * by_[k];
    flat_[k] = scale_[k] * (by_[k] - less_[k]);
  }
}

void ExpectedSteps::Exponentials() {
  if (exponentials_) return;
  exponentials_ = true;
  for (size_t k = 0; k < knots_; ++k) grown_[k] = by_[k] < kLinear ? std::expm1(by_[k]) : 0;
}

double ExpectedSteps::RaiseAt(size_t k, WorkerIndex g) const {
  const double slope = slope_[At(g, k)] * shrink_[k];
  if (by_[k] < kLinear) return std::log1p(slope * grown_[k]);
  const double with = gap_[At(g, k)] - less_[k] + by_[k];
  return with > kLinear ? with : std::log1p(std::exp(with) - slope);
}

double ExpectedSteps::Raise(WorkerIndex g) {
  TakeRate(rates_[static_cast<size_t>(g)]);
  Exponentials();
  double raise = 0;
  for (size_t k = 0; k < knots_; ++k) raise += scale_[k] * RaiseAt(k, g);
  return raise;
}

double ExpectedSteps::LeastRaise(WorkerIndex g) {
  TakeRate(rates_[static_cast<size_t>(g)]);
  // tau log(1 - e + e exp(x / tau)), e the slope and exp(gap), is convex in x and at least both tangents, e x
  // and tau gap + x. Two sums, because each addition waits for the one before it.
  const double *const slope = &slope_[At(g, 0)], *const gap = &gap_[At(g, 0)];
  const auto at = [&](size_t k) { return std::max(steep_[k] * slope[k], scale_[k] * gap[k] + flat_[k]); };
  double even = 0, odd = 0;
  size_t k = 0;
  for (; k + 1 < knots_; k += 2) {
    even += at(k);
    odd += at(k + 1);
  }
  return k < knots_ ? even + at(k) + odd : even + odd;
}

void ExpectedSteps::Add(WorkerIndex g) {
  TakeRate(rates_[static_cast<size_t>(g)]);
  Exponentials();
  for (size_t k = 0; k < knots_; ++k) {
    const double raise = RaiseAt(k, g);
    largest_[k] += tau_[k] * raise;
    less_[k] += raise;
    if (less_[k] > kLinear) Settle(k);
    shrink_[k] = std::exp(-less_[k]);
    gap_[At(g, k)] += by_[k];
    slope_[At(g, k)] = std::exp(gap_[At(g, k)]);
  }
  prepared_ = false;
}

void ExpectedSteps::Settle(size_t k) {
  const double shrink = std::exp(-less_[k]);
  for (size_t at = k; at < gap_.size(); at += knots_) {
    gap_[at] -= less_[k];
    slope_[at] *= shrink;
  }
  less_[k] = 0;
}

bool Horizon::Place(const Snapshot& snapshot, const StopSignal& stop, FreeCapacity& free,
                    Decision& decision) {
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
  for (size_t at = 0; at < order_.size(); ++at) {
    if (at % kHorizonStopEvery == kHorizonStopEvery - 1 && stop && stop()) {
      decision.stopped_early = true;
      return PlaceOnLeastLoaded(snapshot, absl::MakeConstSpan(order_).subspan(at), free,
                                decision.assignments);
    }
    const int32_t i = order_[at];
    const WaitingView& request = snapshot.waiting[i];
    const auto prompt = static_cast<double>(request.prefill_tokens);
    for (size_t k = 0; k < knots; ++k) {
      const double stays = far.curves[static_cast<size_t>(far.curve_of[i]) * knots + k];
      request_.tokens[k] = stays * (prompt + static_cast<double>(far.steps[k]));
      request_.prompt[k] = stays * prompt;
    }
    steps_.Open(request_);
    const WorkerIndex worker = Choose(free, request);
    if (worker == kNoWorker) return false;
    free.Take(request, worker);
    decision.assignments.push_back({i, worker});
    steps_.Add(worker);
  }
  return true;
}

WorkerIndex Horizon::Choose(const FreeCapacity& free, const WaitingView& request) {
  bounds_.clear();
  size_t least = 0;
  for (WorkerIndex g = 0; g < free.workers(); ++g) {
    if (!free.Fits(request, g)) continue;
    bounds_.push_back({steps_.LeastRaise(g), g});
    if (bounds_.back().raise < bounds_[least].raise) least = bounds_.size() - 1;
  }
  if (bounds_.empty()) return kNoWorker;
  // The one with the least bound first: it is mostly the best, and then few others are computed.
  Bound best{steps_.Raise(bounds_[least].worker), bounds_[least].worker};
  for (size_t i = 0; i < bounds_.size(); ++i) {
    if (i == least || bounds_[i].raise > best.raise) continue;
    const Bound exact{steps_.Raise(bounds_[i].worker), bounds_[i].worker};
    if (exact.raise < best.raise || (exact.raise == best.raise && exact.worker < best.worker)) best = exact;
  }
  return best.worker;
}

}  // namespace bfio::core
