#include "tools/sim/experiment/experiment.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "tools/sim/run/workload.h"

namespace bfio::sim {
int64_t ExperimentContext::Shortened(int64_t value, int64_t least) const {
  return std::max<int64_t>(least, std::llround(static_cast<double>(value) / shorten));
}

std::vector<std::string> ExperimentContext::PoliciesOr(std::vector<std::string> own) const {
  return policies.empty() ? std::move(own) : policies;
}

SeededRuns::SeededRuns(std::vector<std::vector<RunJson>> runs)
    : runs_(std::make_shared<const std::vector<std::vector<RunJson>>>(std::move(runs))) {}

size_t SeededRuns::variants() const {
  return runs_->size();
}

const RunJson& SeededRuns::run(size_t variant, size_t seed_index) const {
  return (*runs_)[variant][seed_index];
}

std::vector<double> SeededRuns::Values(size_t variant, const std::string& key) const {
  std::vector<double> values;
  for (const RunJson& run : (*runs_)[variant]) values.push_back(run.at(key).get<double>());
  return values;
}

Estimate SeededRuns::Mean(size_t variant, const std::string& key) const {
  return EstimateMean(Values(variant, key));
}

Estimate SeededRuns::Ratio(size_t variant, size_t base, const std::string& key) const {
  return EstimateRatio(Values(variant, key), Values(base, key));
}

absl::StatusOr<SeededRuns> RunSeeds(const ExperimentContext& context, const std::vector<Variant>& variants) {
  std::vector<PlannedRun> planned;
  for (const Variant& variant : variants) {
    for (int64_t seed = 1; seed <= context.seeds; ++seed) {
      PlannedRun& run = planned.emplace_back();
      run.name = absl::StrCat(variant.name, ", seed ", seed);
      run.options = variant.options;
      run.options.seed = static_cast<uint64_t>(seed);
      run.trace = variant.trace(run.options.seed);
      if (variant.tap_of_seed) {
        run.tap = variant.tap_of_seed(run.options.seed);
      } else if (seed == 1) {
        run.tap = variant.tap;
      }
    }
  }
  absl::StatusOr<std::vector<RunJson>> flat = context.runner->Run(planned);
  if (!flat.ok()) return flat.status();
  std::vector<std::vector<RunJson>> runs(variants.size());
  for (size_t i = 0; i < flat->size(); ++i) {
    runs[i / static_cast<size_t>(context.seeds)].push_back(std::move((*flat)[i]));
  }
  return SeededRuns(std::move(runs));
}

TraceOfSeed OncePerSeed(std::function<Trace(uint64_t)> make) {
  auto made = std::make_shared<std::map<uint64_t, std::shared_ptr<const Trace>>>();
  return [made, make = std::move(make)](uint64_t seed) {
    std::shared_ptr<const Trace>& trace = (*made)[seed];
    if (trace == nullptr) trace = std::make_shared<const Trace>(make(seed));
    return trace;
  };
}

TraceOfSeed DrawnBySeed(const Workload& workload, int64_t requests) {
  return OncePerSeed([trace = workload.trace, requests](uint64_t seed) {
    return DrawWithReplacement(*trace, requests, seed);
  });
}

TraceOfSeed RotatedBySeed(const Workload& workload) {
  return OncePerSeed([trace = workload.trace](uint64_t seed) { return Rotated(*trace, seed); });
}

void AddEstimate(std::vector<report::Cell>& row, const Estimate& estimate, double scale) {
  row.emplace_back(estimate.mean * scale);
  row.emplace_back(estimate.half_width * scale);
}

void AddPoint(report::Series& series, double x, const Estimate& estimate, double scale) {
  series.x.push_back(x);
  series.y.push_back(estimate.mean * scale);
  series.low.push_back(estimate.low() * scale);
  series.high.push_back(estimate.high() * scale);
}

std::vector<std::pair<std::string, std::string>> CommonParameters(const ExperimentContext& context) {
  const SimOptions& base = context.base;
  return {{"workers G", absl::StrCat(base.workers)},
          {"slots per worker B", absl::StrCat(base.batch)},
          {"step time", absl::StrFormat("C + t_l max L, C = %g s, t_l = %g s/token", base.cost.c_s,
                                        base.cost.tl_s_per_token)},
          {"seeds", absl::StrCat("1 to ", context.seeds)},
          {"intervals", "95 %, Student's t over the seeds"}};
}

}  // namespace bfio::sim
