#include "tools/sim/calibrate/calibration.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/cost/group_fit.h"
#include "common/cost/online_fit.h"

namespace bfio::sim {
namespace {

using Json = nlohmann::ordered_json;
using Values = std::vector<double>;

// A worker is slow if it is slower by more than this share and by more than its scatter explains; from this
// number of its rows on. Smaller deviations do not change a decision.
constexpr double kSlowShare = 0.05;
constexpr int64_t kMinWorkerRows = 20;

constexpr size_t kMinBatchRows = 100;
// The fit by batches uses a sample, evenly spaced, of at most this many rows, because it is made repeatedly.
constexpr size_t kMaxRows = 20'000;
constexpr int kBatchRounds = 3;
// Residuals beyond this many standard deviations are outliers; a standard deviation, in medians of absolute
// residuals; a smaller relative residual than the last comes from the clock.
constexpr double kCut = OnlineFitOptions().cut, kMadToSigma = 1.4826, kLeastError = 1e-6;

// The value below which a share q of the values lies; 0 when empty.
double QuantileOf(Values values, double q) {
  if (values.empty()) return 0;
  const auto at = static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(at), values.end());
  return values[at];
}
double MedianOfAbsolute(Values values) {
  for (double& value : values) value = std::abs(value);
  return QuantileOf(std::move(values), 0.5);
}

Json Coefficient(const std::optional<FittedValue>& fitted) {
  return fitted ? Json{{"value", fitted->value}, {"standard_error", fitted->standard_error}} : Json();
}

// The share of the variance of `values` that leaves `residuals`, of those within `most`.
double RSquared(const Values& values, const Values& residuals, double most) {
  double count = 0, sum = 0, squares = 0, rest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::abs(residuals[i]) > most) continue;
    ++count, sum += values[i];
    squares += values[i] * values[i], rest += residuals[i] * residuals[i];
  }
  const double total = squares - sum * sum / std::max(1.0, count);
  return total > 0 ? 1 - rest / total : 0;
}

// The cost by load and prompts. Rows of all workers take turns, as at the barrier: a slow one's are outliers
// among those of the others.
StepCostEstimate FitSteps(const std::vector<StepSample>& samples) {
  std::vector<const StepSample*> order;
  for (const StepSample& sample : samples) order.push_back(&sample);
  std::ranges::stable_sort(order, {}, [](const StepSample* of) { return std::pair(of->epoch, of->step); });
  // Nothing is forgotten.
  OnlineStepFit fit({.memory_steps = 1e6 * static_cast<double>(samples.size() + 1)});
  for (const StepSample* of : order) {
    fit.Add(static_cast<int64_t>(std::min(of->load_tokens, 1e15)),
            static_cast<int64_t>(std::min(of->prefill_tokens, 1e15)), of->local_s);
  }
  return fit.estimate();
}

// The medians of the barrier's time for the rank that arrives last, and of the gap from there to the next
// local work.
std::pair<Json, Json> Overheads(const std::vector<StepSample>& samples) {
  Values gaps, waits;
  std::map<std::pair<double, double>, double> least;  // by epoch and step
  for (const StepSample& sample : samples) {
    if (sample.gap_s >= 0) gaps.push_back(sample.gap_s);
    const auto [it, is_new] = least.try_emplace({sample.epoch, sample.step}, sample.barrier_wait_s);
    it->second = std::min(it->second, sample.barrier_wait_s);
  }
  for (const auto& [step, wait] : least) waits.push_back(wait);
  return {QuantileOf(waits, 0.5), gaps.empty() ? Json() : Json(QuantileOf(gaps, 0.5))};
}

Json Workers(const StepRows& rows, const Values& residuals, std::vector<std::string>& warnings) {
  std::vector<Values> ratios(rows.workers.size());
  for (size_t i = 0; i < rows.samples.size(); ++i) {
    const double fitted = rows.samples[i].local_s - residuals[i];
    if (fitted > 0) ratios[rows.samples[i].worker].push_back(rows.samples[i].local_s / fitted - 1);
  }
  Json workers = Json::array();
  for (size_t w = 0; w < ratios.size(); ++w) {
    const int64_t count = std::ssize(ratios[w]);
    const double slower = QuantileOf(ratios[w], 0.5);
    Values scatter;
    for (const double ratio : ratios[w]) scatter.push_back(std::abs(ratio - slower));
    const double error =
        1.86 * QuantileOf(scatter, 0.5) / std::sqrt(std::max<double>(1, static_cast<double>(count)));
    const bool slow = count >= kMinWorkerRows && slower > kSlowShare && slower > 4 * error;
    workers.push_back({{"worker", rows.workers[w]}, {"rows", count}, {"slower", slower}, {"slow", slow}});
    if (!slow) continue;
    warnings.push_back(
        absl::StrFormat("%s is %.1f %% slower than the fit over all workers", rows.workers[w], slower * 100));
  }
  return workers;
}

Json Batches(const StepRows& rows) {
  std::vector<StepSample> usable, steps;
  for (const StepSample& sample : rows.samples)
    if (sample.batch_tokens > 0 && sample.local_s > 0) usable.push_back(sample);
  const size_t stride = 1 + usable.size() / kMaxRows;
  for (size_t i = 0; i < usable.size(); i += stride) steps.push_back(usable[i]);
  if (steps.size() < kMinBatchRows) return nullptr;
  const auto load_of = [](const StepSample& step) {
    return BatchLoad{static_cast<int64_t>(std::min(step.batch_tokens, 1e15)), step.prefill_pairs,
                     step.decode_context};
  };
  BatchCost cost;
  Values errors(steps.size()), local_s, residuals;
  double most = std::numeric_limits<double>::infinity();
  // Each round leaves out the steps that are outliers of the round before.
  for (int round = 0; round < kBatchRounds; ++round) {
    GroupFit fit({.memory_steps = 1e6 * static_cast<double>(steps.size()), .prices = false});
    for (size_t i = 0; i < steps.size(); ++i)
      if (std::abs(errors[i]) <= most) fit.Add(load_of(steps[i]), steps[i].local_s);
    if (!fit.cost()) return nullptr;
    cost = fit.cost()->batch;
    for (size_t i = 0; i < steps.size(); ++i)
      errors[i] = steps[i].local_s / cost.Seconds(load_of(steps[i])) - 1;
    most = kCut * std::max(kLeastError, kMadToSigma * MedianOfAbsolute(errors));
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    if (std::abs(errors[i]) > most) continue;
    local_s.push_back(steps[i].local_s);
    residuals.push_back(steps[i].local_s - cost.Seconds(load_of(steps[i])));
  }
  for (double& error : errors) error = std::abs(error);
  const auto coefficient = [](double value) { return value > 0 ? Json{{"value", value}} : Json(); };
  return {{"rows", steps.size()},
          {"outliers", steps.size() - local_s.size()},
          {"c_s", Json{{"value", cost.c_s}}},
          {"a_s_per_token", Json{{"value", cost.a_s_per_token}}},
          {"b0_tokens", cost.b0_tokens},
          {"k1_s_per_pair", coefficient(cost.k1_s_per_pair)},
          {"k2_s_per_token", coefficient(cost.k2_s_per_token)},
          {"r_squared", RSquared(local_s, residuals, std::numeric_limits<double>::infinity())},
          {"median_error", QuantileOf(errors, 0.5)},
          {"p95_error", QuantileOf(errors, 0.95)}};
}

}  // namespace

absl::StatusOr<Json> Calibrate(const StepRows& rows) {
  const std::vector<StepSample>& samples = rows.samples;
  const StepCostEstimate fit = FitSteps(samples);
  if (static_cast<double>(fit.steps) < OnlineStepFit::kMinSteps) {
    return absl::InvalidArgumentError(absl::StrCat("the step logs have ", samples.size(), " rows; at least ",
                                                   OnlineStepFit::kMinSteps, " usable ones are needed"));
  }
  std::vector<std::string> warnings;
  const auto with_prefill =
      std::ranges::count_if(samples, [](const StepSample& of) { return of.prefill_tokens > 0; });
  if (!fit.tl)
    warnings.push_back("the load hardly varies: the cost per token cannot be determined and is part of C");
  if (!fit.prefill) {
    warnings.push_back(
        absl::StrCat(with_prefill, " of ", samples.size(),
                     " rows have prefill, or it follows the load: its cost cannot be determined"));
  }
  Values local_s, residuals;
  for (const StepSample& of : samples) {
    local_s.push_back(of.local_s);
    residuals.push_back(of.local_s - (fit.c ? fit.c->value : 0) -
                        (fit.tl ? fit.tl->value * of.load_tokens : 0) -
                        (fit.prefill ? fit.prefill->value * of.prefill_tokens : 0));
  }
  double c_s = fit.c ? fit.c->value : 0;
  if (!fit.c) {
    c_s = QuantileOf(residuals, 0.5);
    for (double& residual : residuals) residual -= c_s;
  }
  const double scale_s = kMadToSigma * MedianOfAbsolute(residuals);
  Json json = {{"files", rows.files}, {"rows", samples.size()}, {"bad_lines", rows.bad_lines}};
  if (rows.bad_lines > 0) json["first_bad"] = rows.first_bad;
  json["outliers"] = fit.outliers;
  json["c_s"] = fit.c ? Coefficient(fit.c) : Json{{"value", c_s}};
  json["tl_s_per_token"] = Coefficient(fit.tl);
  json["prefill_s_per_token"] = Coefficient(fit.prefill);
  std::string flags = absl::StrFormat("--c=%.6g --tl=%.6g ", c_s, fit.tl ? fit.tl->value : 0);
  if (fit.prefill) absl::StrAppendFormat(&flags, "--prefill=%.6g ", fit.prefill->value);
  json["r_squared"] = RSquared(local_s, residuals, kCut * scale_s);
  json["scale_s"] = scale_s;
  json["workers"] = Workers(rows, residuals, warnings);
  for (const double q : {0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99})
    json["residual_s"][absl::StrFormat("p%g", q * 100)] = QuantileOf(residuals, q);
  const auto [barrier_s, gap_s] = Overheads(samples);
  if (gap_s.is_null())
    warnings.push_back("no two steps follow each other without a pause: the gap between steps is unknown");
  json["barrier_s"] = barrier_s;
  json["gap_s"] = gap_s;
  json["batch"] = Batches(rows);
  json["warnings"] = warnings;
  const double overhead_s = barrier_s.get<double>() + (gap_s.is_null() ? 0 : gap_s.get<double>());
  json["sim_flags"] = absl::StrFormat("%s--overhead=%.6g", flags, overhead_s);
  return json;
}

}  // namespace bfio::sim
