#include "tools/sim/calibrate/batch_calibration.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/sim/calibrate/robust_fit.h"

namespace bfio::sim {
namespace {

constexpr size_t kMinBatchRows = 100;
// Fits use a sample, evenly spaced, of at most this many rows, because there are several fits.
constexpr size_t kMaxRows = 20'000;
constexpr int64_t kB0[] = {0, 8, 16, 32, 64, 128, 256};

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

nlohmann::ordered_json CoefficientJson(const Coefficient& coefficient) {
  return {{"value", coefficient.value}, {"standard_error", coefficient.standard_error}};
}

std::string CoefficientLine(const char* name, const Coefficient& value, double unit, const char* unit_name) {
  return absl::StrFormat("%-10s %12.4f %s, standard error %.2g\n", name, value.value * unit, unit_name,
                         value.standard_error * unit);
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

nlohmann::ordered_json BatchJson(const BatchCalibration& calibration) {
  nlohmann::ordered_json json;
  json["rows"] = calibration.rows;
  json["outliers"] = calibration.outliers;
  json["c_s"] = CoefficientJson(calibration.c);
  json["a_s_per_token"] = CoefficientJson(calibration.a);
  json["b0_tokens"] = calibration.b0_tokens;
  json["k1_s_per_pair"] = calibration.k1 ? CoefficientJson(*calibration.k1) : nlohmann::ordered_json(nullptr);
  json["k2_s_per_token"] =
      calibration.k2 ? CoefficientJson(*calibration.k2) : nlohmann::ordered_json(nullptr);
  json["r_squared"] = calibration.r_squared;
  json["median_error"] = calibration.median_error;
  json["p95_error"] = calibration.p95_error;
  return json;
}

std::string BatchText(const BatchCalibration& calibration) {
  std::string text = absl::StrFormat(
      "\nlocal time = c + a max(0, x - b0) + k1 pairs + k2 context, x the batch's tokens, "
      "from %d rows\n",
      calibration.rows);
  absl::StrAppend(&text, CoefficientLine("c", calibration.c, 1e6, "us"),
                  CoefficientLine("a", calibration.a, 1e9, "ns per token"));
  absl::StrAppendFormat(&text, "%-10s %12d tokens\n", "b0", calibration.b0_tokens);
  if (calibration.k1) absl::StrAppend(&text, CoefficientLine("k1", *calibration.k1, 1e12, "ps per pair"));
  if (calibration.k2)
    absl::StrAppend(&text, CoefficientLine("k2", *calibration.k2, 1e9, "ns per cached token"));
  absl::StrAppendFormat(
      &text, "R^2        %12.4f, %d outliers, error of a step's time: median %.1f %%, p95 %.1f %%\n",
      calibration.r_squared, calibration.outliers, 100 * calibration.median_error,
      100 * calibration.p95_error);
  return text;
}

}  // namespace bfio::sim
