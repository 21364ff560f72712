#include "router/core/policy/bf_io_auto/expected_steps.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

namespace bfio::core {
namespace {

// Beyond this, log(1 + exp(x)) is x.
constexpr double kLinear = 30;
// A raise too small to shrink a slope; and a gap whose exponential is 0, for which exp takes much longer than
// for others.
constexpr double kNoRaise = 1e-17;
constexpr double kNoSlope = -700;
// Below this, a worker's slope counts as 0 in bounds.
constexpr double kLeastSlope = 1e-20;
// Exceeds the error of single precision: 2^-24 for each of about 20 operands.
constexpr double kRounding = 2e-6;
// Larger than all values that are compared with it.
constexpr float kHuge = 1e30f;
// Below this, series replace log1p and expm1. These take several times as long as log and exp, and are more
// exact only for small arguments.
constexpr double kSmall = 1.0 / 64;

// log(1 + x) for x >= 0, with a relative error of 1e-13.
double Log1P(double x) {
  if (x >= kSmall) return std::log(1 + x);
  return x * (1 - x * (1.0 / 2 - x * (1.0 / 3 - x * (1.0 / 4 - x * (1.0 / 5 - x * (1.0 / 6 - x / 7))))));
}

// exp(x) - 1 for x >= 0, with a relative error of 1e-14.
double ExpM1(double x) {
  if (x >= kSmall) return std::exp(x) - 1;
  return x * (1 + x * (1.0 / 2 + x * (1.0 / 6 + x * (1.0 / 24 + x * (1.0 / 120 + x / 720)))));
}

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

void ExpectedSteps::Reset(absl::Span<const WorkerView> workers, const FarOutlook& far) {
  knots_ = far.steps.size();
  rates_.clear();
  double rate = 0;
  for (const WorkerView& worker : workers) {
    rates_.push_back({worker.time_per_token, worker.prefill_weight});
    rate += worker.time_per_token / static_cast<double>(workers.size());
  }
  const double spread = std::sqrt(2 * std::log(std::max<double>(2, static_cast<double>(workers.size()))));
  for (std::vector<double>* of : {&weight_, &tau_, &largest_, &scale_, &by_, &grown_}) {
    of->resize(knots_);
  }
  terms_.resize(knots_);
  gap_.resize(workers.size() * knots_);
  slope_.resize(gap_.size());
  less_.assign(knots_, 0);
  shrink_.assign(knots_, 1);
  for (size_t k = 0; k < knots_; ++k) {
    weight_[k] = WeightOf(far.steps, k, far.mean_stay);
    // At least one token, because present loads are known exactly, without variance.
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
  SetBlocks();
  SetTiles();
}

void ExpectedSteps::SetBlocks() {
  const size_t workers = rates_.size(), blocks = (workers + kLanes - 1) / kLanes;
  // A bound holds for a whole block, so workers are sorted by rate, then by the increase of the sum for a
  // token that stays forever.
  std::vector<double> adds(workers, 0);
  for (size_t at = 0; at < slope_.size(); ++at) adds[at / knots_] += weight_[at % knots_] * slope_[at];
  lanes_.resize(workers);
  std::iota(lanes_.begin(), lanes_.end(), 0);
  std::sort(lanes_.begin(), lanes_.end(), [&](WorkerIndex a, WorkerIndex b) {
    const auto key = [&](WorkerIndex g) {
      const auto i = static_cast<size_t>(g);
      return std::make_tuple(rates_[i].token, rates_[i].prompt, adds[i], g);
    };
    return key(a) < key(b);
  });
  lanes_.resize(blocks * kLanes, kNoWorker);
  place_.resize(workers);
  least_rates_.assign(blocks, {kHuge, kHuge});
  least_rate_ = {kHuge, kHuge};
  for (size_t place = 0; place < workers; ++place) {
    const auto g = static_cast<size_t>(lanes_[place]);
    place_[g] = place;
    for (Rate* least : {&least_rate_, &least_rates_[place / kLanes]}) {
      *least = {std::min(least->token, rates_[g].token), std::min(least->prompt, rates_[g].prompt)};
    }
  }
}

void ExpectedSteps::SetTiles() {
  Tile unused;
  unused.gap.fill(kHuge);
  unused.slope.fill(1);
  tiles_.assign(least_rates_.size() * knots_, unused);
  least_tiles_.assign((least_rates_.size() + kLanes - 1) / kLanes * knots_, unused);
  for (WorkerIndex g = 0; g < static_cast<WorkerIndex>(rates_.size()); ++g) SetLane(g);
  for (size_t block = 0; block < least_rates_.size(); ++block) SetLeast(block);
}

void ExpectedSteps::SetLane(WorkerIndex g) {
  const size_t place = place_[static_cast<size_t>(g)];
  for (size_t k = 0; k < knots_; ++k) {
    Tile& tile = tiles_[place / kLanes * knots_ + k];
    tile.gap[place % kLanes] = static_cast<float>(gap_[At(g, k)]);
    // Products with denormal numbers are a hundred times slower, and such a small slope excludes no worker.
    const double slope = slope_[At(g, k)];
    tile.slope[place % kLanes] = slope < kLeastSlope ? 0 : static_cast<float>(slope);
  }
}

void ExpectedSteps::SetLeast(size_t block) {
  const auto least_of = [](const Lanes& lanes) {
    Vector least = {lanes[0], lanes[1], lanes[2], lanes[3]};
    for (size_t from = kVector; from < kLanes; from += kVector) {
      for (size_t lane = 0; lane < kVector; ++lane)
        least[lane] = least[lane] < lanes[from + lane] ? least[lane] : lanes[from + lane];
    }
    return std::min(std::min(least[0], least[1]), std::min(least[2], least[3]));
  };
  for (size_t k = 0; k < knots_; ++k) {
    const Tile& tile = tiles_[block * knots_ + k];
    Tile& least = least_tiles_[block / kLanes * knots_ + k];
    least.gap[block % kLanes] = least_of(tile.gap);
    least.slope[block % kLanes] = least_of(tile.slope);
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
  for (size_t k = 0; k < knots_; ++k) {
    by_[k] = (rate.token * request_->tokens[k] + rate.prompt * request_->prompt[k]) / tau_[k];
    grown_[k] = by_[k] < kLinear ? ExpM1(by_[k]) : 0;
    terms_[k].scale.fill(static_cast<float>(scale_[k]));
    terms_[k].more.fill(static_cast<float>(by_[k] - less_[k] - kRounding * (by_[k] + less_[k])));
    terms_[k].grown.fill(static_cast<float>(grown_[k] * shrink_[k]));
  }
}

double ExpectedSteps::RaiseAt(size_t k, WorkerIndex g) const {
  const double slope = slope_[At(g, k)] * shrink_[k];
  if (by_[k] < kLinear) return Log1P(slope * grown_[k]);
  const double with = gap_[At(g, k)] - less_[k] + by_[k];
  return with > kLinear ? with : std::log1p(std::exp(with) - slope);
}

double ExpectedSteps::Raise(WorkerIndex g) {
  TakeRate(rates_[static_cast<size_t>(g)]);
  double raise = 0;
  for (size_t k = 0; k < knots_; ++k) raise += scale_[k] * RaiseAt(k, g);
  return raise;
}

ExpectedSteps::Lanes ExpectedSteps::Bounds(const Tile* tiles) const {
  Lanes sum{};
  // One vector of lanes at a time, so that its sum stays in a register.
  for (size_t from = 0; from < kLanes; from += kVector) {
    Vector part{};
    for (size_t k = 0; k < knots_; ++k) {
      const Term& term = terms_[k];
      const float *const slope = &tiles[k].slope[from], *const gap = &tiles[k].gap[from];
      // log(1 + z), z = slope (exp(x / tau) - 1), is at least z - z^2 / 2 and log(slope exp(x / tau)).
      for (size_t lane = 0; lane < kVector; ++lane) {
        const float z = slope[lane] * term.grown[lane], near = z * (1 - 0.5f * z);
        const float far = gap[lane] + term.more[lane];
        part[lane] += term.scale[lane] * (near > far ? near : far);
      }
    }
    std::copy(part.begin(), part.end(), &sum[from]);
  }
  return sum;
}

WorkerIndex ExpectedSteps::Least(const FreeCapacity& free, const WaitingView& request) {
  TakeRate(least_rate_);
  blocks_.clear();
  for (size_t block = 0; block < least_rates_.size(); block += kLanes) {
    const Lanes bounds = Bounds(&least_tiles_[block / kLanes * knots_]);
    for (size_t i = 0; i < kLanes && block + i < least_rates_.size(); ++i)
      blocks_.emplace_back(bounds[i], block + i);
  }
  // The block with the least bound first: it mostly contains the best worker, which excludes most others.
  std::swap(blocks_.front(), *std::min_element(blocks_.begin(), blocks_.end()));
  WorkerIndex best = kNoWorker;
  double least = std::numeric_limits<double>::infinity();
  float most = std::numeric_limits<float>::infinity();
  const auto compute = [&](WorkerIndex g) {
    const double raise = Raise(g);
    if (raise > least || (raise == least && g > best)) return;
    best = g;
    least = raise;
    most = static_cast<float>(least * (1 + kRounding));
  };
  candidates_.clear();
  for (const auto& [block_bound, block] : blocks_) {
    if (block_bound > most) continue;
    TakeRate(least_rates_[block]);
    const Lanes bounds = Bounds(&tiles_[block * knots_]);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const WorkerIndex g = lanes_[block * kLanes + lane];
      if (bounds[lane] <= most && g != kNoWorker && free.Fits(request, g))
        candidates_.emplace_back(bounds[lane], g);
    }
    if (best == kNoWorker && !candidates_.empty())
      compute(std::min_element(candidates_.begin(), candidates_.end())->second);
  }
  if (candidates_.empty()) return kNoWorker;
  // A bound is close to the raise, so starting with the least bound leaves few others.
  std::swap(candidates_.front(), *std::min_element(candidates_.begin(), candidates_.end()));
  for (const auto& [bound, g] : candidates_) {
    if (g != best && bound <= most) compute(g);
  }
  return best;
}

void ExpectedSteps::Add(WorkerIndex g) {
  TakeRate(rates_[static_cast<size_t>(g)]);
  bool settled = false;
  for (size_t k = 0; k < knots_; ++k) {
    const double raise = RaiseAt(k, g);
    largest_[k] += tau_[k] * raise;
    less_[k] += raise;
    if (less_[k] > kLinear) {
      Settle(k);
      settled = true;
    }
    if (raise > kNoRaise) shrink_[k] = std::exp(-less_[k]);
    double& gap = gap_[At(g, k)];
    gap += by_[k];
    slope_[At(g, k)] = gap < kNoSlope ? 0 : std::exp(gap);
  }
  if (settled) {
    SetTiles();
  } else {
    SetLane(g);
    SetLeast(place_[static_cast<size_t>(g)] / kLanes);
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

}  // namespace bfio::core
