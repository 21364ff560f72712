#include "tools/sim/experiment/power_study.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tools/sim/run/energy.h"

namespace bfio::sim {
namespace {

constexpr int64_t kRequests = 100'000;

std::vector<PowerPolicy> Policies(const ExperimentContext& context) {
  const double none = std::nan("");
  if (context.policies.empty()) {
    return {{{"FCFS", "fcfs"}, {396, 330, 380}},
            {PaperBfIo(20), {383, 395, 400}},
            {{"bf_io_auto", "bf_io_auto"}, {none, none, none}}};
  }
  std::vector<PowerPolicy> asked;
  for (const Rule& rule : RulesOr(context, {})) asked.push_back({rule, {none, none, none}});
  return asked;
}

StepTap Watch(PowerWatched& watched) {
  return [&watched](const StepView& view) {
    const PowerModel power;
    const double gpu_seconds = view.seconds * static_cast<double>(view.loads.size());
    watched.end_s.push_back(view.begin_s + view.seconds);
    watched.seconds.push_back(view.seconds);
    watched.watts[0].push_back(power.StepJoules(view.loads, view.seconds) / gpu_seconds);
    watched.watts[1].push_back(MfuModel().StepJoules(power, view.active, view.seconds) / gpu_seconds);
    watched.watts[2].push_back(power.BusyJoules(view.local_s, view.seconds) / gpu_seconds);
    const int64_t max = *std::max_element(view.loads.begin(), view.loads.end());
    std::vector<float>&ratio = watched.load_ratio.emplace_back(), &busy = watched.busy.emplace_back();
    for (size_t g = 0; g < view.loads.size(); ++g) {
      ratio.push_back(max > 0 ? static_cast<float>(view.loads[g]) / static_cast<float>(max) : 0);
      busy.push_back(static_cast<float>(view.local_s[g] / view.seconds));
    }
  };
}

SimOptions BaseOptions(const ExperimentContext& context) {
  SimOptions options = context.base;
  options.mode = "overload";
  options.warmup = 0;
  options.steps = 0;
  options.requests = context.Shortened(kRequests, 1'000);
  return options;
}

}  // namespace

void PlanPowerStudy(const ExperimentContext& context, PowerStudy& study) {
  study.shown = Policies(context);
  study.watched.assign(study.shown.size(), std::vector<PowerWatched>(context.seeds));
  const SimOptions base = BaseOptions(context);
  const auto drawn = DrawnBySeed(context.workloads[0], base.requests);
  for (size_t i = 0; i < study.shown.size(); ++i) {
    const Rule& rule = study.shown[i].rule;
    SimOptions options = WithRule(base, rule);
    options.count_drain = false;
    study.variants.push_back({absl::StrCat(rule.name, ", until the pool is empty"), options, drawn});
    study.variants.back().tap_of_seed = [&study, i](uint64_t seed) {
      return Watch(study.watched[i][seed - 1]);
    };
    options.count_drain = true;
    study.variants.push_back({absl::StrCat(rule.name, ", the whole work"), options, drawn});
  }
}

size_t CountedSteps(const SeededRuns& runs, size_t policy, size_t seed_index) {
  return runs.run(PowerStudy::UntilEmpty(policy), seed_index).at("steps").get<size_t>();
}

std::vector<double> Counted(const std::vector<double>& samples, size_t steps) {
  return {samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(std::min(steps, samples.size()))};
}

}  // namespace bfio::sim
