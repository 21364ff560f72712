#include "router/core/lookahead/far_outlook.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace bfio::core {
namespace {

// Mean stay in steps that is assumed while no request runs: about a short chat answer. The first residents
// replace it.
constexpr double kFirstStay = 256;
// The knots are set again when the mean stay has changed by more than this factor.
constexpr double kStayChange = 1.25;
// The last knot, steps: as far as survival tables go.
constexpr double kFurthest = 32767;

}  // namespace

void FarOutlookBuilder::Begin(int32_t workers) {
  double ages = 0, residents = 0;
  for (const Row& row : rows_) {
    ages += row.ages;
    residents += row.residents;
  }
  // In a steady state the tokens that residents have generated are distributed as those still to come.
  const double stay = residents > 0 ? std::max(1.0, ages / residents) : kFirstStay;
  const bool changed = stay > mean_stay_ * kStayChange || stay * kStayChange < mean_stay_;
  if (changed) {
    mean_stay_ = stay;
    SetKnots();
  }
  if (changed || rows_.size() != static_cast<size_t>(workers))
    rows_.assign(static_cast<size_t>(workers), Row{});
  next_ = 0;
  load_.resize(rows_.size() * kKnots);
  variance_.assign(kKnots, 0);
  arriving_.assign(kKnots, 0);
  curve_of_.clear();
  curves_.clear();
}

void FarOutlookBuilder::SetKnots() {
  steps_.assign(kKnots, 0);
  const double factor = std::pow(std::clamp(kReach * mean_stay_, 2.0, kFurthest), 1.0 / (kKnots - 2));
  for (size_t k = 1; k < kKnots; ++k) {
    const auto step = static_cast<int64_t>(std::llround(std::pow(factor, static_cast<double>(k - 1))));
    steps_[k] = std::max(step, steps_[k - 1] + 1);
  }
}

void FarOutlookBuilder::AddWorker(const Lookahead& lookahead, const Worker& worker) {
  const size_t g = next_++;
  Row& row = rows_[g];
  const int64_t step = worker.time.plan_step;
  const bool turn = (step + static_cast<int64_t>(g)) % kRefreshSteps == 0;
  if (!row.step || row.version != worker.version || turn || step < *row.step) {
    Sum(lookahead, worker, row);
  }
  const auto grown = static_cast<double>(step - *row.step);
  for (size_t k = 0; k < kKnots; ++k) {
    load_[g * kKnots + k] = worker.scale * (row.load[k] + grown * row.active[k]);
    variance_[k] += row.variance[k] / static_cast<double>(rows_.size());
    arriving_[k] += row.arrived[k] / static_cast<double>(rows_.size());
  }
}

void FarOutlookBuilder::Sum(const Lookahead& lookahead, const Worker& worker, Row& row) {
  row = Row{};
  row.version = worker.version;
  row.step = worker.time.plan_step;
  std::fill_n(row.load, kKnots, 0.0);
  std::fill_n(row.active, kKnots, 0.0);
  std::fill_n(row.variance, kKnots, 0.0);
  std::fill_n(row.arrived, kKnots, 0.0);
  std::array<double, kKnots> alive;
  for (const Resident& resident : worker.residents) {
    const int64_t stay = lookahead.Lifetime(resident, worker.time, steps_, absl::MakeSpan(alive));
    if (stay <= 0) continue;
    const Progress progress = ProgressOf(resident, worker.time);
    const auto tokens = static_cast<double>(progress.tokens);
    row.ages += static_cast<double>(progress.plan_age);
    row.residents += 1;
    for (size_t k = 0; k < kKnots; ++k) {
      const double p = steps_[k] < stay ? alive[k] : 0, then = tokens + static_cast<double>(steps_[k]);
      row.load[k] += p * then;
      row.active[k] += p;
      row.variance[k] += p * (1 - p) * then * then;
      if (progress.plan_age < steps_[k]) {
        row.variance[k] += tokens * tokens;
        row.arrived[k] += tokens;
      }
    }
  }
}

void FarOutlookBuilder::AddWaiting(Lookahead& lookahead, absl::Span<const WaitingView> waiting) {
  row_of_key_.clear();
  const auto horizon = static_cast<int32_t>(steps_.back());
  for (const WaitingView& view : waiting) {
    const auto [it, is_new] = row_of_key_.try_emplace(lookahead.CurveKey(view, horizon),
                                                      static_cast<int32_t>(curves_.size() / kKnots));
    curve_of_.push_back(it->second);
    if (!is_new) continue;
    curves_.resize(curves_.size() + kKnots);
    const absl::Span<double> row = absl::MakeSpan(curves_).last(kKnots);
    const int64_t stay = lookahead.Lifetime(view, steps_, row);
    for (size_t k = 0; k < kKnots; ++k) {
      if (steps_[k] >= stay) row[k] = 0;
    }
  }
}

FarOutlook FarOutlookBuilder::View() {
  return {steps_, load_, variance_, arriving_, curve_of_, curves_, mean_stay_};
}

}  // namespace bfio::core
