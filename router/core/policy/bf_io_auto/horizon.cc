#include "router/core/policy/bf_io_auto/horizon.h"

#include <algorithm>
#include <cmath>

#include "router/core/policy/least_first.h"

namespace bfio::core {
namespace {

// Beyond this, log(1 + exp(x)) is x.
constexpr double kLinear = 30;

// Sum of exp(-h / r) over the h whose ratio to steps[k] is closer to 1 than to the neighbouring steps.
double WeightOf(absl::Span<const int64_t> steps, size_t k, double r) {
  const auto between = [](int64_t a, int64_t b) {
    return std::max(static_cast<double>(a) + 0.5, std::sqrt(static_cast<double>(a) * static_cast<double>(b)));
  };
  const double from = k == 0 ? 0 : between(steps[k - 1], steps[k]);
  if (k + 1 == steps.size()) return r * std::exp(-from / r);
  return r * (std::exp(-from / r) - std::exp(-between(steps[k], steps[k + 1]) / r));
}

}  // namespace

bool Horizon::Place(const Snapshot& snapshot, const StopSignal& stop, FreeCapacity& free,
                    Decision& decision) {
  OrderLongestFirst(snapshot, snapshot.waiting.size(), order_);
  const FarOutlook& far = snapshot.far;
  const size_t knots = far.steps.size();
  steps_.Reset(free.views(), far, snapshot.rule == PlacementRule::kRefill);
  request_.resize(knots);
  for (size_t at = 0; at < order_.size(); ++at) {
    // A placement takes some 20 us in the largest groups.
    if (stop && stop()) {
      decision.stopped_early = true;
      return PlaceOnLeastLoaded(snapshot, absl::MakeConstSpan(order_).subspan(at), free,
                                decision.assignments);
    }
    const int32_t i = order_[at];
    const WaitingView& request = snapshot.waiting[i];
    const auto prompt = static_cast<double>(request.prefill_tokens);
    for (size_t k = 0; k < knots; ++k) {
      const double stays = far.curves[static_cast<size_t>(far.curve_of[i]) * knots + k];
      request_[k] = stays * (prompt + static_cast<double>(far.steps[k]));
    }
    steps_.Open(request_);
    const WorkerIndex worker = steps_.Least(free, request);
    if (worker == kNoWorker) return false;
    free.Take(request, worker);
    decision.assignments.push_back({i, worker});
    steps_.Add(worker);
  }
  return true;
}

void ExpectedSteps::Reset(absl::Span<const WorkerView> workers, const FarOutlook& far, bool refill) {
  knots_ = far.steps.size();
  rates_.clear();
  double rate = 0;
  for (const WorkerView& worker : workers) {
    rates_.push_back(worker.time_per_token);
    rate += worker.time_per_token / static_cast<double>(workers.size());
  }
  const double spread = std::sqrt(2 * std::log(std::max<double>(2, static_cast<double>(workers.size()))));
  for (std::vector<double>* of : {&weight_, &tau_, &origin_, &sum_, &by_, &grown_}) of->resize(knots_);
  time_.resize(workers.size() * knots_);
  exp_.resize(time_.size());
  level_.assign(refill ? knots_ : 0, 0);
  for (size_t at = 0; at < time_.size(); ++at) {
    time_[at] = workers[at / knots_].TimeAt(far.load[at]);
    if (refill) level_[at % knots_] += time_[at] / static_cast<double>(workers.size());
  }
  for (size_t k = 0; k < knots_; ++k) {
    weight_[k] = WeightOf(far.steps, k, far.mean_stay);
    // At least one token, because present loads are known exactly, without variance.
    tau_[k] = rate * std::max(1.0, std::sqrt(far.variance[k]) / spread);
    if (refill) level_[k] += rate * far.arriving[k];
    SetKnot(k);
  }
}

void ExpectedSteps::SetKnot(size_t k) {
  origin_[k] = level_.empty() ? time_[k] : std::max(time_[k], level_[k]);
  for (size_t at = k; at < time_.size(); at += knots_) origin_[k] = std::max(origin_[k], time_[at]);
  sum_[k] =
      level_.empty() ? 0 : static_cast<double>(rates_.size()) * std::exp((level_[k] - origin_[k]) / tau_[k]);
  for (size_t at = k; at < time_.size(); at += knots_) {
    exp_[at] = std::exp((time_[at] - origin_[k]) / tau_[k]);
    sum_[k] += exp_[at];
  }
}

double ExpectedSteps::Value() const {
  double value = 0;
  for (size_t k = 0; k < knots_; ++k) value += weight_[k] * (origin_[k] + tau_[k] * std::log(sum_[k]));
  return value;
}

void ExpectedSteps::Open(const Request& request) {
  request_ = &request;
  prepared_ = false;
}

void ExpectedSteps::TakeRate(double rate) {
  if (prepared_ && rate == rate_) return;
  rate_ = rate;
  prepared_ = true;
  for (size_t k = 0; k < knots_; ++k) {
    by_[k] = rate * (*request_)[k] / tau_[k];
    grown_[k] = by_[k] < kLinear ? std::expm1(by_[k]) : 0;
  }
}

double ExpectedSteps::RaiseAt(size_t k, WorkerIndex g) const {
  const double share = exp_[At(g, k)] / sum_[k];
  if (by_[k] < kLinear) return std::log1p(share * grown_[k]);
  const double with = (time_[At(g, k)] - origin_[k]) / tau_[k] + by_[k] - std::log(sum_[k]);
  return with > kLinear ? with : std::log1p(std::exp(with) - share);
}

double ExpectedSteps::Raise(WorkerIndex g, double most) {
  TakeRate(rates_[static_cast<size_t>(g)]);
  double raise = 0;
  // Far knots stand for more steps, so the sum reaches `most` sooner from there.
  for (size_t k = knots_; k-- > 0 && raise <= most;) raise += weight_[k] * tau_[k] * RaiseAt(k, g);
  return raise;
}

WorkerIndex ExpectedSteps::Least(const FreeCapacity& free, const WaitingView& request) {
  WorkerIndex best = kNoWorker;
  double least = std::numeric_limits<double>::infinity();
  for (WorkerIndex g = 0; g < free.workers(); ++g) {
    if (!free.Fits(request, g)) continue;
    const double raise = Raise(g, least);
    if (best != kNoWorker && raise >= least) continue;
    best = g;
    least = raise;
  }
  return best;
}

void ExpectedSteps::Add(WorkerIndex g) {
  TakeRate(rates_[static_cast<size_t>(g)]);
  for (size_t k = 0; k < knots_; ++k) {
    double& time = time_[At(g, k)];
    time += by_[k] * tau_[k];
    const double above = (time - origin_[k]) / tau_[k];
    if (above > kLinear) {
      SetKnot(k);
      continue;
    }
    double& term = exp_[At(g, k)];
    const double before = term;
    term = std::exp(above);
    sum_[k] += term - before;
  }
}

}  // namespace bfio::core
