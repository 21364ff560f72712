#include "tools/sim/calibrate/calibration.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bfio::sim {
namespace {

using Json = nlohmann::ordered_json;
using Values = std::vector<double>;

constexpr size_t kMinRows = 30;
// If the middle 90 % of the loads lie within this share of the median, they do not determine the cost of a
// token.
constexpr double kMinLoadSpread = 0.02;
// Minimum number of steps with prefill from which its cost is fitted.
constexpr int64_t kMinPrefillRows = 10;
// Condition number above which the effects of load and prefill cannot be separated.
constexpr double kMaxCondition = 30;
constexpr double kWarnCondition = 5;
// A worker is slow if it is slower by more than this share and by more than its scatter explains; from this
// number of its rows on. Smaller deviations do not change a decision.
constexpr double kSlowShare = 0.05;
constexpr int64_t kMinWorkerRows = 20;

constexpr size_t kMinBatchRows = 100;
// Fits use a sample, evenly spaced, of at most this many rows, because there are several fits.
constexpr size_t kMaxRows = 20'000;
constexpr int64_t kB0[] = {0, 8, 16, 32, 64, 128, 256};

Values ColumnOf(const std::vector<StepSample>& samples, double StepSample::*field) {
  Values column;
  for (const StepSample& sample : samples) column.push_back(sample.*field);
  return column;
}

Json Coefficient(const RobustFit& fit, size_t i) {
  return {{"value", fit.coefficients[i]}, {"standard_error", fit.standard_errors[i]}};
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
    if (sample.batch_tokens > 0) usable.push_back(sample);
  const size_t stride = 1 + usable.size() / kMaxRows;
  for (size_t i = 0; i < usable.size(); i += stride) steps.push_back(usable[i]);
  if (steps.size() < kMinBatchRows) return nullptr;
  const Values local_s = ColumnOf(steps, &StepSample::local_s);
  Json best;
  // Of absolute residuals, which outliers influence little.
  double least = std::numeric_limits<double>::infinity();
  for (const int64_t b0 : kB0) {
    Values beyond = ColumnOf(steps, &StepSample::batch_tokens);
    for (double& tokens : beyond) tokens = std::max(0.0, tokens - static_cast<double>(b0));
    // From the model with most terms down: the first whose coefficients the data determines and none of which
    // is negative.
    for (const auto& [k1, k2] : {std::pair(true, true), {false, true}, {true, false}, {false, false}}) {
      std::vector<Values> columns = {beyond};
      if (k1) columns.push_back(ColumnOf(steps, &StepSample::prefill_pairs));
      if (k2) columns.push_back(ColumnOf(steps, &StepSample::decode_context));
      const auto fit = FitRobustly(columns, local_s);
      if (!fit.ok() ||
          !std::ranges::all_of(fit->coefficients, [](double coefficient) { return coefficient >= 0; }))
        continue;
      double distance = 0;
      Values errors;
      for (size_t i = 0; i < local_s.size(); ++i) {
        const double residual = std::abs(fit->residuals[i]), fitted = local_s[i] - fit->residuals[i];
        distance += residual;
        if (fitted > 0) errors.push_back(residual / fitted);
      }
      if (distance >= least) break;
      least = distance;
      best = {{"rows", steps.size()},
              {"outliers", fit->outliers},
              {"c_s", Coefficient(*fit, 0)},
              {"a_s_per_token", Coefficient(*fit, 1)},
              {"b0_tokens", b0},
              {"k1_s_per_pair", k1 ? Coefficient(*fit, 2) : Json()},
              {"k2_s_per_token", k2 ? Coefficient(*fit, k1 ? 3 : 2) : Json()},
              {"r_squared", fit->r_squared},
              {"median_error", QuantileOf(errors, 0.5)},
              {"p95_error", QuantileOf(errors, 0.95)}};
      break;
    }
  }
  return best;
}

}  // namespace

absl::StatusOr<Json> Calibrate(const StepRows& rows) {
  const std::vector<StepSample>& samples = rows.samples;
  if (samples.size() < kMinRows) {
    return absl::InvalidArgumentError(absl::StrCat("the step logs have ", samples.size(),
                                                   " usable rows; at least ", kMinRows, " are needed"));
  }
  std::vector<std::string> warnings;
  const Values loads = ColumnOf(samples, &StepSample::load_tokens),
               prompts = ColumnOf(samples, &StepSample::prefill_tokens);
  const bool load = QuantileOf(loads, 0.95) - QuantileOf(loads, 0.05) >=
                    kMinLoadSpread * std::max(QuantileOf(loads, 0.5), 1.0);
  const int64_t with_prefill = std::ranges::count_if(prompts, [](double tokens) { return tokens > 0; });
  bool prefill = with_prefill >= kMinPrefillRows && with_prefill < std::ssize(samples);
  if (!load)
    warnings.push_back("the load hardly varies: the cost per token cannot be determined and is part of C");
  if (!prefill) {
    warnings.push_back(absl::StrCat(with_prefill, " of ", samples.size(),
                                    " rows have prefill: its cost cannot be determined"));
  }
  const auto fit_terms = [&] {
    std::vector<Values> columns;
    if (load) columns.push_back(loads);
    if (prefill) columns.push_back(prompts);
    return FitRobustly(columns, ColumnOf(samples, &StepSample::local_s));
  };
  absl::StatusOr<RobustFit> fit = fit_terms();
  if (load && prefill && (!fit.ok() || fit->condition > kMaxCondition)) {
    warnings.push_back("prefill and load are correlated: the cost of prefill cannot be determined");
    prefill = false;
    fit = fit_terms();
  }
  if (!fit.ok()) return fit.status();
  if (fit->condition > kWarnCondition) {
    warnings.push_back(
        absl::StrFormat("prefill and load are correlated (condition number %.1f): their costs are uncertain",
                        fit->condition));
  }
  Json json = {{"files", rows.files}, {"rows", samples.size()}, {"bad_lines", rows.bad_lines}};
  if (rows.bad_lines > 0) json["first_bad"] = rows.first_bad;
  json["outliers"] = fit->outliers;
  std::string flags;
  const auto add = [&](const char* name, const char* key, const char* flag, std::optional<size_t> i) {
    json[key] = i ? Coefficient(*fit, *i) : Json();
    const double value = i ? fit->coefficients[*i] : 0;
    if (value < 0)
      warnings.push_back(absl::StrCat(name, " is negative: the cost model does not fit these logs"));
    if (flag == absl::string_view("prefill") && !i) return;
    absl::StrAppendFormat(&flags, "--%s=%.6g ", flag, std::max(0.0, value));
  };
  add("C", "c_s", "c", 0);
  add("t_l", "tl_s_per_token", "tl", load ? std::optional(1) : std::nullopt);
  add("the cost of prefill", "prefill_s_per_token", "prefill",
      prefill ? std::optional(load ? 2 : 1) : std::nullopt);
  json["r_squared"] = fit->r_squared;
  json["scale_s"] = fit->scale;
  json["workers"] = Workers(rows, fit->residuals, warnings);
  for (const double q : {0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99})
    json["residual_s"][absl::StrFormat("p%g", q * 100)] = QuantileOf(fit->residuals, q);
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
