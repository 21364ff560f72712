#include "common/cost/group_fit.h"

#include <algorithm>
#include <cmath>

#include "common/cost/least_squares.h"

namespace bfio {
namespace {

enum Term : size_t { kRows, kContext, kPrompts, kEager, kPairs, kTerms };
using TermMoments = BasicMoments<kTerms + 1>;
constexpr size_t kStepTime = kTerms;

// A slope is determined only if the standard deviation of the rows is at least this share of their mean.
constexpr double kMinSpread = 0.02;
// K1, E and E' must be at least this many times their standard error. For padding, which is tested again and
// again and stays as identified, this many standard deviations.
constexpr double kSignificant = 4, kCertain = 5;
// They must also explain more than this share of the times' mean square: no clock and no model is better.
constexpr double kMinGain = 1e-6;
// Lower bound of a row's time, as a share of the mean time per row: planners divide by the slope.
constexpr double kLeastSlope = 0.01;
// B0 is found to this share of GroupFit::kKneeRows.
constexpr size_t kKneeParts = 4;
// A step of less than this share of the usual time has no more weight than one of this share.
constexpr double kShortStep = 0.25;
// Of predicted_ratio: after kMinSteps, the weight of an old step.
constexpr double kRecent = 0.9;
// The slowest rank before the first fit, by the ratios of usual coefficients. Later their share, because a
// coefficient that is 0 by mistake would otherwise hide the ranks that show it.
constexpr double kHint = 0.02;
constexpr BatchCost kGuess = {
    .c_s = 0, .a_s_per_token = 1, .b0_tokens = 0, .k1_s_per_pair = 2e-5, .k2_s_per_token = 1e-3};

// Least squares without the terms that explain the times insignificantly better. `count`: number of steps.
Line<kTerms> Significant(const TermMoments& m, unsigned terms, double least, double count) {
  Line<kTerms> line = FitLine(m, terms, least);
  for (const size_t term : {kPairs, kEager, kPrompts}) {
    if (!(line.slopes[term] > 0)) continue;
    const Line<kTerms> without = FitLine(m, terms & ~TermBit(term), least);
    const double error = line.rest / std::max(1.0, count - static_cast<double>(kTerms) - 1);
    const double gain =
        std::max(kSignificant * kSignificant * error, kMinGain * m.About({}, kStepTime, kStepTime));
    if (without.rest - line.rest > gain) continue;
    terms &= ~TermBit(term);
    line = without;
  }
  return line;
}

double Predicted(const GroupCost& cost, absl::Span<const BatchLoad> ranks, std::optional<size_t> rank) {
  return rank ? cost.RankSeconds(ranks[*rank], cost.terms.ModeOf(ranks)) : cost.Seconds(ranks);
}

const BatchLoad& SlowestBy(const GroupCost& cost, absl::Span<const BatchLoad> ranks) {
  const StepMode mode = cost.terms.ModeOf(ranks);
  const double hint = kHint * cost.batch.a_s_per_token;
  const auto seconds = [&](const BatchLoad& rank) {
    return cost.RankSeconds(rank, mode) + hint * GroupCost{kGuess}.RankSeconds(rank, mode);
  };
  return *std::max_element(ranks.begin(), ranks.end(),
                           [&](const BatchLoad& a, const BatchLoad& b) { return seconds(a) < seconds(b); });
}

}  // namespace

GroupFit::GroupFit(const Options& options) : options_(options) {
  for (const bool padded : {false, true})
    hypotheses_[padded].slowest = {kGuess, {.padded = padded, .captured_rows = options.captured_rows}};
}

void GroupFit::Add(absl::Span<const BatchLoad> ranks, double seconds, std::optional<size_t> rank) {
  const absl::Span<const BatchLoad> timed = rank ? ranks.subspan(*rank, 1) : ranks;
  const bool any =
      std::any_of(timed.begin(), timed.end(), [](const BatchLoad& load) { return load.tokens > 0; });
  if (!any || !(seconds > 0) || !std::isfinite(seconds)) return;
  if (cost()) {
    predicted_ += Predicted(*cost(), ranks, rank);
    measured_ += seconds;
  }
  if (steps_ < kYoung) {
    young_.push_back({ranks.size(), seconds, rank});
    young_ranks_.insert(young_ranks_.end(), ranks.begin(), ranks.end());
  }
  Take(ranks, seconds, rank);
  ++count_;
  if (++steps_ % kMinSteps != 0) return;
  // The first steps were added with a poor fit: they are added anew when their number has doubled.
  if (steps_ <= kYoung && (steps_ & (steps_ - 1)) == 0) {
    for (Hypothesis& hypothesis : hypotheses_) hypothesis.moments = {};
    const BatchLoad* next = young_ranks_.data();
    for (const Step& step : young_) {
      Take({next, step.ranks}, step.seconds, step.rank);
      next += step.ranks;
    }
  }
  for (Hypothesis& hypothesis : hypotheses_) Refit(hypothesis);
  if (steps_ < kYoung) return;
  if (steps_ == kYoung) {
    predicted_ = measured_ = 0;
    young_ = {};
    young_ranks_ = {};
  }
  ComparePadding();
  const double keep = std::exp(-static_cast<double>(kMinSteps) / options_.memory_steps);
  for (Hypothesis& hypothesis : hypotheses_) hypothesis.moments.Scale(keep);
  count_ *= keep;
  for (double* const sum : {&predicted_, &measured_}) *sum *= kRecent;
}

void GroupFit::Take(absl::Span<const BatchLoad> ranks, double seconds, std::optional<size_t> rank) {
  double weight = 1;
  if (cost()) {
    const double predicted = Predicted(hypotheses_[padded_].slowest, ranks, rank);
    seconds = std::min(seconds, kCut * predicted);
    weight = std::pow(usual_s_ / std::max(predicted, kShortStep * usual_s_), 2);
  }
  for (Hypothesis& hypothesis : hypotheses_) {
    const BatchLoad& timed = rank ? ranks[*rank] : SlowestBy(hypothesis.slowest, ranks);
    const StepMode mode = hypothesis.slowest.terms.ModeOf(ranks);
    const int64_t rows = std::max(timed.tokens, mode.padded_rows);
    StepMoments::Vector x;
    for (size_t i = 0; i < kKnees; ++i)
      x[i] = static_cast<double>(std::max<int64_t>(0, rows - static_cast<int64_t>(i) * kKneeRows));
    double* const terms = &x[kKnees - 1];
    terms[kContext] = timed.decode_context;
    terms[kPrompts] = options_.prices && mode.prompts ? 1 : 0;
    terms[kEager] = options_.prices && mode.eager ? 1 : 0;
    terms[kPairs] = timed.prefill_pairs;
    terms[kStepTime] = seconds;
    hypothesis.moments.Add(x, weight);
  }
}

void GroupFit::Refit(Hypothesis& hypothesis) {
  const StepMoments& all = hypothesis.moments;
  if (usual_s_ == 0) usual_s_ = all.mean.back();
  const double least = kLeastSlope * all.mean.back() / all.mean[0];
  // The moments of the terms with the B0 that is `part` parts of a knee. Between two knees, its column is
  // nearly a mean of theirs.
  const auto moments = [&](size_t part) {
    const size_t knee = std::min(part / kKneeParts, kKnees - 2);
    const double next = static_cast<double>(part) / kKneeParts - static_cast<double>(knee);
    const auto mix = [&](const StepMoments::Vector& v) { return (1 - next) * v[knee] + next * v[knee + 1]; };
    TermMoments m;
    m.weight = all.weight;
    m.mean[0] = mix(all.mean);
    m.co[0][0] = (1 - next) * mix(all.co[knee]) + next * mix(all.co[knee + 1]);
    for (size_t i = 1; i <= kTerms; ++i) {
      m.mean[i] = all.mean[kKnees - 1 + i];
      m.co[0][i] = m.co[i][0] = mix(all.co[kKnees - 1 + i]);
      for (size_t j = 1; j <= kTerms; ++j) m.co[i][j] = all.co[kKnees - 1 + i][kKnees - 1 + j];
    }
    return m;
  };
  size_t best = 0;
  const auto attempt = [&](size_t part, unsigned terms) {
    const TermMoments m = moments(part);
    if (!(m.co[0][0] > kMinSpread * kMinSpread * m.weight * m.mean[0] * m.mean[0])) return;
    const Line<kTerms> line = Significant(m, terms, least, count_);
    if (hypothesis.cost && line.rest >= hypothesis.rest) return;
    best = part;
    hypothesis.rest = line.rest;
    hypothesis.cost = {BatchCost{.c_s = line.c,
                                 .a_s_per_token = line.slopes[kRows],
                                 .b0_tokens = static_cast<int64_t>(part) * kKneeRows / int64_t{kKneeParts},
                                 .k1_s_per_pair = line.slopes[kPairs],
                                 .k2_s_per_token = line.slopes[kContext]},
                       hypothesis.slowest.terms};
    hypothesis.cost->terms.prompt_s = line.slopes[kPrompts];
    hypothesis.cost->terms.eager_s = line.slopes[kEager];
  };
  const auto search = [&](unsigned terms) {
    hypothesis.cost.reset();
    for (size_t knee = 0; knee < kKnees; ++knee) attempt(knee * kKneeParts, terms);
    const size_t from = std::max(best, kKneeParts - 1) - (kKneeParts - 1);
    const size_t end = std::min(best + kKneeParts, (kKnees - 1) * kKneeParts);
    for (size_t part = from; part < end; ++part) attempt(part, terms);
  };
  constexpr unsigned kAll = TermBit(kTerms) - 1;
  search(kAll);
  if (!hypothesis.cost) return;
  hypothesis.slowest = *hypothesis.cost;
  hypothesis.slowest.batch.k1_s_per_pair = FitLine(moments(best), kAll, least).slopes[kPairs];
  if (steps_ < kYoung) search(kAll & ~(TermBit(kPrompts) | TermBit(kEager)));
}

void GroupFit::ComparePadding() {
  if (!hypotheses_[false].cost || !hypotheses_[true].cost) return;
  const StepMoments& m = hypotheses_[false].moments;
  const size_t time = m.mean.size() - 1;
  const double least = kMinGain * m.About({}, time, time);
  // Twice the logarithm of the ratio of likelihoods.
  const double padded =
      count_ * std::log((hypotheses_[false].rest + least) / (hypotheses_[true].rest + least));
  if (std::abs(padded) < kCertain * kCertain) return;
  padded_ = padded > 0;
  identified_ = true;
}

}  // namespace bfio
