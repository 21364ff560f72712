#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "tools/sim/admission/fcfs_worker.h"
#include "tools/sim/admission/fluid.h"
#include "tools/sim/admission/wait_tuner.h"
#include "tools/sim/admission/wait_worker.h"
#include "tools/sim/cells/cell.h"
#include "tools/sim/cells/cells.h"

ABSL_DECLARE_FLAG(uint64_t, seed);
ABSL_DECLARE_FLAG(uint64_t, kv_tokens);
ABSL_DECLARE_FLAG(double, c);
ABSL_DECLARE_FLAG(double, tl);
ABSL_FLAG(std::string, batching, "wait",
          "wait: wait, nested_wait, prefill_first (vLLM's first version) or chunked (Sarathi)");
ABSL_FLAG(std::string, types, "",
          "wait: types of requests, RATE:PROMPT:OUTPUT each, separated by commas, by output ascending");
ABSL_FLAG(double, seconds, 100, "wait, network: how long requests come");
ABSL_FLAG(
    double, threshold_load, 0.95,
    "wait: share of an iteration's time to carry what comes that thresholds are solved for, from 0 to 1");
ABSL_FLAG(double, threshold_rates, 1, "wait: thresholds are solved for so many times the rates");
ABSL_FLAG(double, threshold_margin, 1.1,
          "wait, with nested_wait: a segment's threshold over what reaches it");
ABSL_FLAG(uint32_t, segments, 0,
          "wait, with nested_wait: at most so many segments of equal width; 0: one for each type");
ABSL_FLAG(double, delta, 0.1,
          "wait, with nested_wait: probability with which the printed bound of memory may be exceeded");
ABSL_FLAG(std::string, thresholds, "",
          "wait: thresholds by type or segment in place of solved ones, separated by commas");
ABSL_FLAG(double, tuner, 0,
          "wait: seconds of the time constant of rates that are estimated online and solved for; 0: rates "
          "are known");
ABSL_FLAG(std::string, intensity, "",
          "wait: rates over time as shares of --types': SHARE,SHARE,.. over equal parts of --seconds, or "
          "wave:LOW:HIGH:SECONDS; constant when empty");
ABSL_FLAG(uint32_t, token_budget, 512,
          "wait, engine: tokens of a batch (of a batch of prompts with prefill_first)");
ABSL_FLAG(uint32_t, most_running, 0,
          "wait, with prefill_first and chunked: requests in a batch; 0: what memory holds");

namespace bfio::sim {
namespace {

constexpr double kMostRate = 1e6, kMostArrivals = 1e8;
constexpr double kMostStages = 1e5;

absl::StatusOr<std::vector<RequestType>> TypesOf(const std::string& text) {
  std::vector<RequestType> types;
  for (const absl::string_view item : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const absl::StatusOr<std::vector<double>> numbers = NumbersOf("types", item, ':');
    if (!numbers.ok()) return numbers.status();
    const std::vector<double>& of = *numbers;
    if (of.size() != 3 || !(of[0] > 0 && of[0] <= kMostRate) || !(of[1] >= 0 && of[1] <= 1e9) ||
        !(of[2] >= 1 && of[2] <= kMostStages)) {
      return absl::InvalidArgumentError(absl::StrCat("--types: '", item, "' is not RATE:PROMPT:OUTPUT"));
    }
    types.push_back({of[0], static_cast<int64_t>(of[1]), static_cast<int64_t>(of[2])});
    if (types.size() > 1 && types[types.size() - 2].output >= types.back().output) {
      return absl::InvalidArgumentError("--types must stand by output, ascending");
    }
  }
  if (types.empty()) return absl::InvalidArgumentError("--types names none");
  return types;
}

// Sets options.intensity from --intensity; leaves it empty for a constant rate.
absl::Status SetIntensity(const std::string& text, WaitOptions& options) {
  if (text.empty()) return absl::OkStatus();
  const bool wave = absl::StartsWith(text, "wave:");
  const auto numbers = NumbersOf("intensity", wave ? text.substr(5) : text, wave ? ':' : ',');
  if (!numbers.ok()) return numbers.status();
  const size_t shares = wave ? 2 : numbers->size();
  if ((wave && (numbers->size() != 3 || (*numbers)[2] <= 0)) || numbers->empty() ||
      std::any_of(numbers->begin(), numbers->begin() + static_cast<std::ptrdiff_t>(shares),
                  [](double share) { return share < 0 || share > 1; })) {
    return absl::InvalidArgumentError(absl::StrCat("--intensity=", text, ": shares lie between 0 and 1"));
  }
  if (wave) {
    options.intensity = [low = (*numbers)[0], high = (*numbers)[1], period = (*numbers)[2]](double at) {
      return (low + high) / 2 + (high - low) / 2 * std::sin(2 * std::numbers::pi * at / period);
    };
  } else {
    options.intensity = [parts = *numbers, horizon = options.horizon](double at) {
      const auto part = static_cast<size_t>(at / horizon * static_cast<double>(parts.size()));
      return parts[std::min(part, parts.size() - 1)];
    };
  }
  return absl::OkStatus();
}

Segments SegmentsFor(const std::vector<RequestType>& types) {
  const uint32_t count = absl::GetFlag(FLAGS_segments);
  return count == 0 ? core::SegmentsOf(types) : MergedSegments(types, count);
}

// --thresholds if set, otherwise computed thresholds: those that carry the load, or, where their batch does
// not fit into memory, the largest that do. Empty with --tuner.
absl::StatusOr<std::vector<int64_t>> ThresholdsOf(std::vector<RequestType> types, const WaitOptions& options,
                                                  bool nested) {
  const auto given = NumbersOf("thresholds", absl::GetFlag(FLAGS_thresholds), ',');
  if (!given.ok()) return given.status();
  if (!given->empty()) {
    const size_t count = nested ? SegmentsFor(types).last_stage.size() : types.size();
    if (given->size() != count || *std::min_element(given->begin(), given->end()) < 1) {
      return absl::InvalidArgumentError("--thresholds must name one of at least 1 for each type or segment");
    }
    return std::vector<int64_t>(given->begin(), given->end());
  }
  const double load = absl::GetFlag(FLAGS_threshold_load);
  for (RequestType& type : types) type.rate *= absl::GetFlag(FLAGS_threshold_rates);
  const double margin = absl::GetFlag(FLAGS_threshold_margin);
  const Segments segments = SegmentsFor(types);
  absl::StatusOr<std::vector<int64_t>> solved = nested
                                                    ? NestedThresholds(segments, options.time, margin, load)
                                                    : WaitThresholds(types, options.time, load);
  if (options.memory == 0) return solved;
  const double usable = (1 - options.watermark) * static_cast<double>(options.memory);
  if (solved.ok() &&
      (nested ? NestedPeakTokens(segments, *solved) : WaitPeakTokens(types, *solved)) <= usable)
    return solved;
  return nested ? NestedThresholdsWithin(segments, margin, usable) : WaitThresholdsWithin(types, usable);
}

struct WaitCell {
  WaitRun run;
  std::vector<int64_t> thresholds;
  // Nested WAIT's bound, for its thresholds and for ones that are not rounded. The second is absent where no
  // memory suffices.
  std::optional<NestedMemory> bound, fluid_bound;
};

void AddBounds(const std::vector<RequestType>& types, const WaitOptions& options, WaitCell& cell) {
  const Segments segments = SegmentsFor(types);
  // An iteration takes d0 at least.
  const double iterations = std::ceil(options.horizon / options.time.d0), delta = absl::GetFlag(FLAGS_delta);
  cell.bound = NestedMemoryBound(
      segments, std::vector<double>(cell.thresholds.begin(), cell.thresholds.end()), iterations, delta);
  const std::vector<double> fluid = NestedFluidThresholds(
      segments, options.time, absl::GetFlag(FLAGS_threshold_margin), absl::GetFlag(FLAGS_threshold_load));
  if (!fluid.empty()) cell.fluid_bound = NestedMemoryBound(segments, fluid, iterations, delta);
}

nlohmann::ordered_json BoundJson(const std::optional<NestedMemory>& bound) {
  if (!bound) return nullptr;
  return {{"peak_tokens", bound->peak},
          {"printed_peak_tokens", bound->printed_peak},
          {"printed_equal_peak_tokens", bound->printed_equal_peak},
          {"queues_tokens", bound->queues},
          {"excess_tokens", bound->excess}};
}

absl::StatusOr<WaitCell> RunWaiting(const std::vector<RequestType>& types, const WaitOptions& options,
                                    bool nested) {
  WaitCell cell;
  if (const double tuner = absl::GetFlag(FLAGS_tuner); tuner > 0) {
    if (nested) return absl::InvalidArgumentError("--tuner is for --batching=wait");
    WaitTuner rates(types, options.time, {tuner});
    cell.run = RunTunedWait(types, rates, options);
    return cell;
  }
  absl::StatusOr<std::vector<int64_t>> thresholds = ThresholdsOf(types, options, nested);
  if (!thresholds.ok()) return thresholds.status();
  cell.thresholds = *std::move(thresholds);
  cell.run = nested ? RunNestedWait(types, SegmentsFor(types), cell.thresholds, options)
                    : RunWait(types, cell.thresholds, options);
  if (nested) AddBounds(types, options, cell);
  return cell;
}

absl::StatusOr<WaitCell> RunBatching(const std::vector<RequestType>& types, const WaitOptions& options) {
  const absl::StatusOr<size_t> batching = ChoiceOf("batching", absl::GetFlag(FLAGS_batching),
                                                   {"wait", "nested_wait", "prefill_first", "chunked"});
  if (!batching.ok()) return batching.status();
  if (*batching < 2) return RunWaiting(types, options, *batching == 1);
  FcfsOptions fcfs;
  fcfs.batching = *batching == 2 ? Batching::kPrefillFirst : Batching::kChunked;
  fcfs.token_budget = absl::GetFlag(FLAGS_token_budget);
  fcfs.most_running = absl::GetFlag(FLAGS_most_running);
  fcfs.run = options;
  return WaitCell{RunFcfs(types, fcfs), {}, {}, {}};
}

absl::Status CheckWaitFlags(const std::vector<RequestType>& types) {
  double rate = 0;
  int64_t largest = 0;
  for (const RequestType& type : types) {
    rate += type.rate;
    largest = std::max(largest, type.prompt + type.output);
  }
  const std::string batching = absl::GetFlag(FLAGS_batching);
  const uint64_t memory = absl::GetFlag(FLAGS_kv_tokens);
  const bool bounded = memory > 0 || batching == "prefill_first" || batching == "chunked";
  for (const absl::Status& status :
       {CheckNumber("seconds", absl::GetFlag(FLAGS_seconds), 1e-6, kMostArrivals / rate),
        CheckNumber("c", absl::GetFlag(FLAGS_c), 1e-9, 1e6),
        CheckNumber("tl", absl::GetFlag(FLAGS_tl), 0, 1e6),
        CheckNumber("threshold_load", absl::GetFlag(FLAGS_threshold_load), 1e-3, 1),
        CheckNumber("threshold_rates", absl::GetFlag(FLAGS_threshold_rates), 1e-6, 1e6),
        CheckNumber("threshold_margin", absl::GetFlag(FLAGS_threshold_margin), 1, 1e3),
        CheckNumber("tuner", absl::GetFlag(FLAGS_tuner), 0, 1e9),
        CheckNumber("token_budget", absl::GetFlag(FLAGS_token_budget), 1, 1e9),
        CheckNumber("segments", absl::GetFlag(FLAGS_segments), 0, kMostStages),
        CheckNumber("delta", absl::GetFlag(FLAGS_delta), 1e-12, 1),
        CheckNumber("kv_tokens", static_cast<double>(memory), bounded ? static_cast<double>(largest) : 0,
                    1e12)}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunWaitCommand() {
  const absl::StatusOr<std::vector<RequestType>> types = TypesOf(absl::GetFlag(FLAGS_types));
  if (!types.ok()) return types.status();
  if (const absl::Status status = CheckWaitFlags(*types); !status.ok()) return status;
  WaitOptions options;
  options.time = {absl::GetFlag(FLAGS_c), absl::GetFlag(FLAGS_tl)};
  options.horizon = absl::GetFlag(FLAGS_seconds);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.memory = static_cast<int64_t>(absl::GetFlag(FLAGS_kv_tokens));
  if (const absl::Status status = SetIntensity(absl::GetFlag(FLAGS_intensity), options); !status.ok())
    return status;
  const absl::StatusOr<Fluid> fluid = FluidEquilibrium(*types, options.time);
  if (!fluid.ok() && options.memory == 0) return absl::InvalidArgumentError(fluid.status().message());
  const double unlimited = std::numeric_limits<double>::max() / 1e6;
  const auto memory = options.memory > 0 ? static_cast<double>(options.memory) : unlimited;
  const absl::StatusOr<WaitCell> cell = RunBatching(*types, options);
  if (!cell.ok()) return absl::InvalidArgumentError(cell.status().message());
  PrintCell({{"throughput_tokens_per_s", cell->run.tokens_per_s},
             {"fluid_tokens_per_s", fluid.ok() ? nlohmann::ordered_json(fluid->throughput) : nullptr},
             {"sustained_tokens_per_s", ThroughputWithin(*types, options.time, memory)},
             {"latency_s_mean", cell->run.mean_latency},
             {"ttft_s_mean", cell->run.mean_ttft},
             {"completed", cell->run.completed},
             {"iterations", cell->run.iterations},
             {"peak_batch_tokens", cell->run.peak_batch},
             {"peak_kv_tokens", cell->run.peak_resident},
             {"evictions", cell->run.evictions},
             {"thresholds", cell->thresholds},
             {"bound", BoundJson(cell->bound)},
             {"fluid_bound", BoundJson(cell->fluid_bound)}});
  return absl::OkStatus();
}

}  // namespace bfio::sim
