// BF-IO paper, Theorems 1 to 3: how the improvement over FCFS grows with slots and workers.
//
// Prompts uniform on 1 .. 100; outputs of 20 tokens (Theorem 1), geometric with mean 20 (Theorem 2),
// geometric with loads that grow otherwise (Theorem 3). The pool is deep: 3 G B requests for constant
// outputs, where all slots fall free together, and 4 times the mean number of free slots for geometric ones.
// Whether that met the theorems' condition is looked at (overload_watch.h): what waits depends on the rule.
#include "tools/sim/experiment/scaling.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/workload/synthetic.h"
#include "tools/sim/experiment/arrivals.h"
#include "tools/sim/experiment/experiments.h"

namespace bfio::sim {
namespace scaling {
namespace {

constexpr int32_t kBatches[] = {16, 32, 64, 128, 256};
constexpr int32_t kGroups[] = {4, 8, 16, 32, 64, 128, 256, 512, 1024};
// Where loads drift otherwise.
constexpr int32_t kFewGroups[] = {4, 16, 64, 256};
constexpr int64_t kTraceRows = 300'000;

std::vector<Family> Families() {
  return {{"constant outputs", 1, "growth", false},
          {"geometric outputs", 2, "growth", true},
          {"geometric, constant loads", 3, "constant", true},
          {"geometric, growth in every other step", 3, "throttled:0.5", true},
          {"geometric, 1 to 4 tokens a step", 3, "speculative:3:0.7", true},
          {"geometric, growth 0, 0, 5, 1", 3, "sequence:0,0,5,1", true}};
}

// The largest group; fewer workers for a quick look.
int32_t LargestGroup(const ExperimentContext& context) {
  return static_cast<int32_t>(std::max(64.0, 1024 / context.shorten));
}

// A large group's mean over few steps is as good as a small one's over many, and a step of it costs more.
Cell MakeCell(const ExperimentContext& context, const Family& family, size_t index, int32_t workers,
              int32_t batch) {
  const int64_t slots = static_cast<int64_t>(workers) * batch;
  const auto within = [&](int64_t wanted, int64_t least, int64_t work) {
    return std::clamp<int64_t>(work / slots, context.Shortened(least, 2), context.Shortened(wanted, 2));
  };
  Cell cell{index, workers, batch, 0, 0, 0, 0};
  if (family.geometric) {
    // Ages are stationary after some mean lengths, and so is what waits.
    cell.warmup = std::clamp<int64_t>(5'000'000 / slots, 150, context.Shortened(400, 150));
    cell.fcfs_steps = within(4000, 200, 20'000'000);
    cell.steps = within(2000, 120, 6'000'000);
    cell.pool = static_cast<int64_t>(std::ceil(4 * static_cast<double>(slots) * kEndRate));
  } else {
    // Whole rounds of kOutput steps; those in which nobody ends cost next to nothing.
    cell.warmup = kOutput * std::clamp<int64_t>(100'000 / slots, 2, 20);
    cell.fcfs_steps = kOutput * within(400, 10, 1'000'000);
    cell.steps = kOutput * within(50, 4, 200'000);
    cell.pool = 3 * slots;
  }
  return cell;
}

std::vector<Cell> Cells(const ExperimentContext& context, const std::vector<Family>& families) {
  const int32_t workers = context.base.workers, batch = context.base.batch;
  std::vector<Cell> cells;
  const auto add = [&](size_t family, int32_t g, int32_t b) {
    for (const Cell& cell : cells) {
      if (cell.family == family && cell.workers == g && cell.batch == b) return;
    }
    cells.push_back(MakeCell(context, families[family], family, g, b));
  };
  for (size_t family = 0; family < families.size(); ++family) {
    for (int32_t b : kBatches) add(family, workers, b);
    if (families[family].theorem < 3) {
      for (int32_t g : kGroups) {
        if (g <= LargestGroup(context)) add(family, g, batch);
      }
    } else {
      for (int32_t g : kFewGroups) {
        if (g <= LargestGroup(context)) add(family, g, batch);
      }
    }
  }
  return cells;
}

std::vector<Rule> Rules(const ExperimentContext& context) {
  std::vector<Rule> rules = {{"fcfs", "fcfs", ""}};
  const std::vector<Rule> own = {{"bf_io paper H=0", "bf_io", "paper"},
                                 {"bf_io square", "bf_io", "square"},
                                 {"lpt", "lpt", ""},
                                 {"bf_io_auto", "bf_io_auto", ""}};
  for (const Rule& rule : RulesOr(context, own)) {
    if (rule.policy != "fcfs") rules.push_back(rule);
  }
  return rules;
}

std::vector<size_t> Sorted(const Study& study, std::vector<size_t> cells) {
  std::sort(cells.begin(), cells.end(), [&](size_t a, size_t b) {
    const Cell &x = study.cells[a], &y = study.cells[b];
    return std::pair(x.workers, x.batch) < std::pair(y.workers, y.batch);
  });
  return cells;
}

}  // namespace

std::vector<size_t> Study::OverWorkers(size_t family, int32_t batch) const {
  std::vector<size_t> found;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (cells[i].family == family && cells[i].batch == batch) found.push_back(i);
  }
  return Sorted(*this, std::move(found));
}

std::vector<size_t> Study::OverBatch(size_t family, int32_t workers) const {
  std::vector<size_t> found;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (cells[i].family == family && cells[i].workers == workers) found.push_back(i);
  }
  return Sorted(*this, std::move(found));
}

}  // namespace scaling

absl::StatusOr<Findings> Scaling(const ExperimentContext& context) {
  using namespace scaling;  // NOLINT(build/namespaces): its own parts
  Study study;
  study.families = Families();
  study.rules = Rules(context);
  study.cells = Cells(context, study.families);
  const TraceOfSeed constant = OncePerSeed([](uint64_t seed) {
    return UniformPromptsConstantOutputs(1, kLargestPrompt, kOutput, kTraceRows, seed);
  });
  const TraceOfSeed geometric = OncePerSeed([](uint64_t seed) {
    return UniformPromptsGeometricOutputs(1, kLargestPrompt, kEndRate, kTraceRows, seed);
  });
  std::vector<Variant> variants;
  for (const Cell& cell : study.cells) {
    const Family& family = study.families[cell.family];
    for (size_t rule = 0; rule < study.rules.size(); ++rule) {
      SimOptions options = WithRule(context.base, study.rules[rule]);
      options.mode = "overload";
      options.requests = 0;
      options.workers = cell.workers;
      options.batch = cell.batch;
      options.drift = family.drift;
      options.reveal = cell.pool;
      options.warmup = cell.warmup;
      options.steps = rule == 0 ? cell.fcfs_steps : cell.steps;
      const TraceOfSeed& trace = family.geometric ? geometric : constant;
      study.watches.push_back(std::make_shared<OverloadWatch>(options, trace(1)));
      variants.push_back({absl::StrFormat("%s, %s, G=%d, B=%d", study.rules[rule].name, family.name,
                                          cell.workers, cell.batch),
                          options, trace,
                          [watch = study.watches.back()](const StepView& view) { watch->See(view); }});
    }
  }
  absl::StatusOr<SeededRuns> runs = RunSeeds(context, variants);
  if (!runs.ok()) return runs.status();
  Findings findings;
  findings.parameters = CommonParameters(context);
  if (absl::Status status = Report(study, *runs, context.base.workers, context.base.batch, findings);
      !status.ok()) {
    return status;
  }
  return findings;
}

}  // namespace bfio::sim
