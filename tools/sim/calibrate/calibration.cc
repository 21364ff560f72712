#include "tools/sim/calibrate/calibration.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/sim/calibrate/robust_fit.h"

namespace bfio::sim {
namespace {

constexpr size_t kMinRows = 30;
// If the middle 90 % of the loads lie within this share of the median, they do not determine the cost of a
// token.
constexpr double kMinLoadSpread = 0.02;
// Minimum number of steps with prefill from which its cost is fitted.
constexpr int64_t kMinPrefillRows = 10;
// Condition number above which the effects of load and prefill cannot be separated.
constexpr double kMaxCondition = 30;
constexpr double kWarnCondition = 5;
// Minimum number of a worker's rows from which it is judged.
constexpr int64_t kMinWorkerRows = 20;

constexpr size_t kMinBatchRows = 100;
// Fits use a sample, evenly spaced, of at most this many rows, because there are several fits.
constexpr size_t kMaxRows = 20'000;
constexpr int64_t kB0[] = {0, 8, 16, 32, 64, 128, 256};

double Spread(const StepRows& rows) {
  std::vector<double> loads;
  loads.reserve(rows.samples.size());
  for (const StepSample& sample : rows.samples) loads.push_back(sample.load_tokens);
  const double low = QuantileOf(loads, 0.05), middle = QuantileOf(loads, 0.5), high = QuantileOf(loads, 0.95);
  return high - low <= 0 ? 0 : (high - low) / std::max(middle, 1.0);
}

std::vector<std::vector<double>> Columns(const StepRows& rows, bool load, bool prefill) {
  std::vector<std::vector<double>> columns;
  const auto add = [&](double StepSample::*field) {
    std::vector<double>& column = columns.emplace_back();
    for (const StepSample& sample : rows.samples) column.push_back(sample.*field);
  };
  if (load) add(&StepSample::load_tokens);
  if (prefill) add(&StepSample::prefill_tokens);
  return columns;
}

void SetOverheads(const StepRows& rows, Calibration& out) {
  std::vector<double> gaps;
  std::map<std::pair<uint64_t, int64_t>, double> least;  // by epoch and step
  for (const StepSample& sample : rows.samples) {
    if (sample.gap_s) gaps.push_back(*sample.gap_s);
    const auto [it, is_new] = least.try_emplace({sample.epoch, sample.step}, sample.barrier_wait_s);
    it->second = std::min(it->second, sample.barrier_wait_s);
  }
  std::vector<double> waits;
  for (const auto& [step, wait] : least) waits.push_back(wait);
  out.barrier_s = QuantileOf(waits, 0.5);
  if (!gaps.empty()) out.gap_s = QuantileOf(gaps, 0.5);
  if (gaps.empty())
    out.warnings.push_back(
        "no two steps follow each other without a pause: the gap between steps is unknown");
}

void SetWorkers(const StepRows& rows, const std::vector<double>& residuals, Calibration& out) {
  std::vector<std::vector<double>> ratios(rows.workers.size());
  for (size_t i = 0; i < rows.samples.size(); ++i) {
    const double fitted = rows.samples[i].local_s - residuals[i];
    if (fitted > 0) ratios[rows.samples[i].worker].push_back(rows.samples[i].local_s / fitted - 1);
  }
  for (size_t w = 0; w < ratios.size(); ++w) {
    WorkerDeviation& worker = out.workers.emplace_back();
    worker.worker = rows.workers[w];
    worker.rows = static_cast<int64_t>(ratios[w].size());
    worker.slower = QuantileOf(ratios[w], 0.5);
    std::vector<double> scatter;
    for (const double ratio : ratios[w]) scatter.push_back(std::abs(ratio - worker.slower));
    const double error =
        1.86 * QuantileOf(scatter, 0.5) / std::sqrt(std::max<double>(1, static_cast<double>(worker.rows)));
    worker.slow =
        worker.rows >= kMinWorkerRows && worker.slower > Calibration::kSlowShare && worker.slower > 4 * error;
    if (worker.slow) {
      out.warnings.push_back(absl::StrFormat("%s is %.1f %% slower than the fit over all workers",
                                             worker.worker, worker.slower * 100));
    }
  }
}

struct Steps {
  std::vector<double> tokens, pairs, context, local_s;
};

Steps StepsOf(const StepRows& rows) {
  std::vector<const StepSample*> usable;
  for (const StepSample& sample : rows.samples) {
    if (sample.batch && sample.batch->tokens > 0) usable.push_back(&sample);
  }
  Steps steps;
  const size_t stride = 1 + usable.size() / kMaxRows;
  for (size_t i = 0; i < usable.size(); i += stride) {
    steps.tokens.push_back(usable[i]->batch->tokens);
    steps.pairs.push_back(usable[i]->batch->prefill_pairs);
    steps.context.push_back(usable[i]->batch->decode_context);
    steps.local_s.push_back(usable[i]->local_s);
  }
  return steps;
}

struct Candidate {
  RobustFit fit;
  int64_t b0 = 0;
  bool k1 = false, k2 = false;
  // Sum of absolute residuals, which outliers influence little.
  double distance = 0;
};

// Fits models from the one with most terms down. Returns the first whose coefficients the data determines and
// none of which is negative.
std::optional<Candidate> FitWith(const Steps& steps, int64_t b0) {
  std::vector<double> beyond;
  for (const double tokens : steps.tokens) beyond.push_back(std::max(0.0, tokens - static_cast<double>(b0)));
  for (const auto& [k1, k2] :
       {std::pair(true, true), std::pair(false, true), std::pair(true, false), std::pair(false, false)}) {
    std::vector<std::vector<double>> columns = {beyond};
    if (k1) columns.push_back(steps.pairs);
    if (k2) columns.push_back(steps.context);
    auto fit = FitRobustly(columns, steps.local_s);
    if (!fit.ok()) continue;
    const auto& coefficients = fit->coefficients;
    if (std::any_of(coefficients.begin(), coefficients.end(), [](double value) { return !(value >= 0); })) {
      continue;
    }
    Candidate candidate{*std::move(fit), b0, k1, k2};
    for (const double residual : candidate.fit.residuals) candidate.distance += std::abs(residual);
    return candidate;
  }
  return std::nullopt;
}

nlohmann::ordered_json ToJson(const std::optional<Coefficient>& coefficient) {
  if (!coefficient) return nullptr;
  return {{"value", coefficient->value}, {"standard_error", coefficient->standard_error}};
}

nlohmann::ordered_json ToJson(const std::optional<double>& value) {
  if (!value) return nullptr;
  return *value;
}

nlohmann::ordered_json ToJson(const std::optional<BatchCalibration>& batch) {
  if (!batch) return nullptr;
  return {{"rows", batch->rows},
          {"outliers", batch->outliers},
          {"c_s", ToJson(std::optional(batch->c))},
          {"a_s_per_token", ToJson(std::optional(batch->a))},
          {"b0_tokens", batch->b0_tokens},
          {"k1_s_per_pair", ToJson(batch->k1)},
          {"k2_s_per_token", ToJson(batch->k2)},
          {"r_squared", batch->r_squared},
          {"median_error", batch->median_error},
          {"p95_error", batch->p95_error}};
}

std::string Line(const char* name, const std::optional<Coefficient>& value, double unit,
                 const char* unit_name) {
  if (!value) return absl::StrFormat("%-10s cannot be determined from these logs\n", name);
  return absl::StrFormat("%-10s %12.4f %s, standard error %.2g (%.2g %%)\n", name, value->value * unit,
                         unit_name, value->standard_error * unit,
                         value->value == 0 ? 0 : 100 * value->standard_error / std::abs(value->value));
}

}  // namespace

std::optional<BatchCalibration> CalibrateBatches(const StepRows& rows) {
  const Steps steps = StepsOf(rows);
  if (steps.tokens.size() < kMinBatchRows) return std::nullopt;
  std::optional<Candidate> best;
  for (const int64_t b0 : kB0) {
    auto candidate = FitWith(steps, b0);
    if (candidate && (!best || candidate->distance < best->distance)) best = std::move(candidate);
  }
  if (!best) return std::nullopt;
  BatchCalibration out;
  const auto coefficient = [&](size_t i) {
    return Coefficient{best->fit.coefficients[i], best->fit.standard_errors[i]};
  };
  out.rows = static_cast<int64_t>(steps.tokens.size());
  out.outliers = best->fit.outliers;
  out.b0_tokens = best->b0;
  out.c = coefficient(0);
  out.a = coefficient(1);
  if (best->k1) out.k1 = coefficient(2);
  if (best->k2) out.k2 = coefficient(best->k1 ? 3 : 2);
  out.r_squared = best->fit.r_squared;
  std::vector<double> errors;
  for (size_t i = 0; i < steps.local_s.size(); ++i) {
    const double fitted = steps.local_s[i] - best->fit.residuals[i];
    if (fitted > 0) errors.push_back(std::abs(best->fit.residuals[i]) / fitted);
  }
  out.median_error = QuantileOf(errors, 0.5);
  out.p95_error = QuantileOf(errors, 0.95);
  return out;
}

absl::StatusOr<Calibration> Calibrate(const StepRows& rows) {
  if (rows.samples.size() < kMinRows) {
    return absl::InvalidArgumentError(absl::StrCat("the step logs have ", rows.samples.size(),
                                                   " usable rows; at least ", kMinRows, " are needed"));
  }
  Calibration out;
  out.rows = static_cast<int64_t>(rows.samples.size());
  const bool load = Spread(rows) >= kMinLoadSpread;
  const int64_t with_prefill = std::count_if(rows.samples.begin(), rows.samples.end(),
                                             [](const StepSample& s) { return s.prefill_tokens > 0; });
  bool prefill = with_prefill >= kMinPrefillRows && with_prefill < out.rows;
  if (!load) {
    out.warnings.push_back(
        "the load hardly varies: the cost per token cannot be determined and is part of C");
  }
  if (!prefill) {
    out.warnings.push_back(
        absl::StrCat(with_prefill, " of ", out.rows, " rows have prefill: its cost cannot be determined"));
  }
  std::vector<double> local_s;
  for (const StepSample& sample : rows.samples) local_s.push_back(sample.local_s);
  absl::StatusOr<RobustFit> fit = FitRobustly(Columns(rows, load, prefill), local_s);
  if (load && prefill && (!fit.ok() || fit->condition > kMaxCondition)) {
    out.warnings.push_back("prefill and load are correlated: the cost of prefill cannot be determined");
    prefill = false;
    fit = FitRobustly(Columns(rows, load, prefill), local_s);
  }
  if (!fit.ok()) return fit.status();
  if (fit->condition > kWarnCondition) {
    out.warnings.push_back(
        absl::StrFormat("prefill and load are correlated (condition number %.1f): their costs are uncertain",
                        fit->condition));
  }
  const auto coefficient = [&](size_t i) {
    return Coefficient{fit->coefficients[i], fit->standard_errors[i]};
  };
  out.c = coefficient(0);
  if (load) out.tl = coefficient(1);
  if (prefill) out.prefill = coefficient(load ? 2 : 1);
  for (const auto& [name, value] : {std::pair<const char*, std::optional<Coefficient>>{"C", out.c},
                                    {"t_l", out.tl},
                                    {"the cost of prefill", out.prefill}}) {
    if (value && value->value < 0) {
      out.warnings.push_back(absl::StrCat(name, " is negative: the cost model does not fit these logs"));
    }
  }
  out.r_squared = fit->r_squared;
  out.scale_s = fit->scale;
  out.outliers = fit->outliers;
  SetWorkers(rows, fit->residuals, out);
  for (const double q : {0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99})
    out.residuals.push_back({q, QuantileOf(fit->residuals, q)});
  SetOverheads(rows, out);
  out.batch = CalibrateBatches(rows);
  return out;
}

std::string SimFlags(const Calibration& calibration) {
  std::string flags = absl::StrFormat("--c=%.6g", std::max(0.0, calibration.c.value));
  absl::StrAppendFormat(&flags, " --tl=%.6g", calibration.tl ? std::max(0.0, calibration.tl->value) : 0.0);
  if (calibration.prefill) {
    absl::StrAppendFormat(&flags, " --prefill=%.6g", std::max(0.0, calibration.prefill->value));
  }
  absl::StrAppendFormat(&flags, " --overhead=%.6g", calibration.overhead_s());
  return flags;
}

nlohmann::ordered_json CalibrationJson(const StepRows& rows, const Calibration& calibration) {
  nlohmann::ordered_json json;
  json["files"] = rows.files;
  json["rows"] = calibration.rows;
  json["bad_lines"] = rows.bad_lines;
  json["outliers"] = calibration.outliers;
  json["c_s"] = ToJson(std::optional<Coefficient>(calibration.c));
  json["tl_s_per_token"] = ToJson(calibration.tl);
  json["prefill_s_per_token"] = ToJson(calibration.prefill);
  json["r_squared"] = calibration.r_squared;
  json["scale_s"] = calibration.scale_s;
  for (const Calibration::Quantile& quantile : calibration.residuals) {
    json["residual_s"][absl::StrFormat("p%g", quantile.q * 100)] = quantile.residual_s;
  }
  json["barrier_s"] = ToJson(calibration.barrier_s);
  json["gap_s"] = ToJson(calibration.gap_s);
  json["workers"] = nlohmann::ordered_json::array();
  for (const WorkerDeviation& worker : calibration.workers) {
    json["workers"].push_back(
        {{"worker", worker.worker}, {"rows", worker.rows}, {"slower", worker.slower}, {"slow", worker.slow}});
  }
  json["batch"] = ToJson(calibration.batch);
  json["warnings"] = calibration.warnings;
  json["sim_flags"] = SimFlags(calibration);
  return json;
}

std::string CalibrationText(const StepRows& rows, const Calibration& calibration) {
  std::string text =
      absl::StrFormat("local time = C + t_l * load + c_p * prefill, from %d rows of %d workers\n\n",
                      calibration.rows, rows.workers.size());
  absl::StrAppend(&text, Line("C", calibration.c, 1e6, "us"),
                  Line("t_l", calibration.tl, 1e9, "ns per token"),
                  Line("c_p", calibration.prefill, 1e9, "ns per prompt token"));
  absl::StrAppendFormat(&text, "R^2        %12.4f, residuals' scale %.1f us\n", calibration.r_squared,
                        calibration.scale_s * 1e6);
  absl::StrAppendFormat(
      &text, "outliers   %12d (%.2f %%), ignored by the fit\n", calibration.outliers,
      100 * static_cast<double>(calibration.outliers) / static_cast<double>(calibration.rows));
  absl::StrAppend(&text, "residuals ");
  for (const Calibration::Quantile& quantile : calibration.residuals) {
    absl::StrAppendFormat(&text, " p%g %.1f", quantile.q * 100, quantile.residual_s * 1e6);
  }
  absl::StrAppendFormat(&text,
                        " us\nbarrier    %12.1f us for the last rank to arrive, gap %.1f us (medians)\n",
                        calibration.barrier_s.value_or(0) * 1e6, calibration.gap_s.value_or(0) * 1e6);
  std::vector<WorkerDeviation> workers = calibration.workers;
  std::sort(workers.begin(), workers.end(), [](const auto& a, const auto& b) { return a.slower > b.slower; });
  constexpr size_t kShown = 8;
  for (size_t i = 0; i < std::min(kShown, workers.size()); ++i) {
    absl::StrAppendFormat(&text, "%s %+11.2f %% %s, %d rows%s\n", i == 0 ? "worker    " : "          ",
                          workers[i].slower * 100, workers[i].worker, workers[i].rows,
                          workers[i].slow ? ": slow" : "");
  }
  if (workers.size() > kShown)
    absl::StrAppendFormat(&text, "           and %d faster ones\n", workers.size() - kShown);
  if (rows.bad_lines > 0) {
    absl::StrAppendFormat(&text, "unusable lines %d, first: %s\n", rows.bad_lines, rows.first_bad);
  }
  if (const std::optional<BatchCalibration>& batch = calibration.batch) {
    absl::StrAppendFormat(
        &text,
        "\nlocal time = c + a max(0, x - b0) + k1 pairs + k2 context, x the batch's tokens, from %d rows\n",
        batch->rows);
    absl::StrAppend(&text, Line("c", batch->c, 1e6, "us"), Line("a", batch->a, 1e9, "ns per token"));
    absl::StrAppendFormat(&text, "%-10s %12d tokens\n", "b0", batch->b0_tokens);
    absl::StrAppend(&text, Line("k1", batch->k1, 1e12, "ps per pair"),
                    Line("k2", batch->k2, 1e9, "ns per cached token"));
    absl::StrAppendFormat(
        &text, "R^2        %12.4f, %d outliers, error of a step's time: median %.1f %%, p95 %.1f %%\n",
        batch->r_squared, batch->outliers, 100 * batch->median_error, 100 * batch->p95_error);
  }
  for (const std::string& warning : calibration.warnings) absl::StrAppend(&text, "warning: ", warning, "\n");
  absl::StrAppend(&text, "\nbfio_sim ", SimFlags(calibration), "\n");
  return text;
}

}  // namespace bfio::sim
