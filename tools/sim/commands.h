// The subcommands of bfio_sim, and what several of them share. A subcommand describes its options in a table
// of its own, reads them and runs. The errors are INVALID_ARGUMENT or NOT_FOUND, naming the option, for bad
// input. Threads: call from main.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/config/options.h"
#include "common/cost/batch_time.h"
#include "common/workload/trace.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/sim/run/options.h"

namespace bfio::sim {

// Reads the command line into the table's variables. Ends the program on --help and on a bad option.
using ReadOptions = std::function<void(OptionTable& table)>;

// Without a subcommand: each policy on one workload, as a table or JSON lines.
absl::Status RunPolicies(const ReadOptions& read);
// Replays a router's decision log and compares the decisions. DATA_LOSS when the log is damaged,
// FAILED_PRECONDITION when a decision differs from the recorded one.
absl::Status RunReplayCommand(const ReadOptions& read);
// Whether bfio would help a running cluster, from its metrics. UNAVAILABLE when they cannot be read.
absl::Status RunEstimateCommand(const ReadOptions& read);
// Writes the requests of a workload as a trace with generic columns, or the demand that they place on a
// group.
absl::Status RunWorkloadCommand(const ReadOptions& read);
// A policy against every baseline over a grid. Progress goes to standard error.
absl::Status RunDominanceCommand(const ReadOptions& read);
// One rule for the prompts and decodes of engines behind a barrier.
absl::Status RunServeCommand(const ReadOptions& read);
// A rule for prompts and decodes against all others, each with its best budget in hindsight.
absl::Status RunServeGridCommand(const ReadOptions& read);
// Rules of disaggregated prefill over a grid.
absl::Status RunHandOffsCommand(const ReadOptions& read);
// Placement rules in front of engine ranks with prefix caches.
absl::Status RunPrefixesCommand(const ReadOptions& read);

// Options that several subcommands have; the value of each variable is the default: --seed and the settings
// of policies.
void AddPolicySettings(OptionTable& table, SimOptions& options);
// The options of AddPolicySettings, and all others of a simulated run except policy and ranks.
void AddRunOptions(OptionTable& table, SimOptions& options);
// With --requests alone every request counts and the last one ends the run; --warmup and --steps override.
void EndWithRequests(const OptionTable& table, SimOptions& options);

struct WorkloadOptions {
  std::string trace, profile;
  bool with_replacement = false;
};
// Says on standard error what was not usable.
void PrintDroppedRows(const Trace& trace);
// --trace, --profile and --draw; `otherwise`: what is used without the first two.
void AddWorkload(OptionTable& table, WorkloadOptions& workload, absl::string_view otherwise = "conversation");
// The workload, varied by `seed`: rotated to another start, sampled anew, or with rows drawn with
// replacement. The profile conversation when it has neither trace nor profile. `requests` > 0: number of rows
// of a drawn workload. Dropped rows of a file are reported on standard error.
absl::StatusOr<Trace> ReadWorkload(const WorkloadOptions& workload, uint64_t seed, int64_t requests);

// --threads, 0 for one per processor.
void AddThreads(OptionTable& table, int32_t& threads);
// The number of processors when `threads` is 0.
int32_t NumThreads(int32_t threads);

// Where the output is always JSON, the option is accepted for scripts that always give it.
void AddJson(OptionTable& table, bool& json);

// A list of numbers separated by commas; `none` is an empty one.
template <typename T>
void AddNumbers(OptionTable& table, absl::string_view name, std::vector<T>* numbers, Within within,
                absl::string_view help) {
  const auto parse = [within](const std::string& text) -> absl::StatusOr<std::vector<T>> {
    std::vector<T> parsed;
    if (text == "none") return parsed;
    for (const absl::string_view item : absl::StrSplit(text, ',', absl::SkipEmpty())) {
      double number = 0;
      const bool valid = absl::SimpleAtod(item, &number) && number >= within.least && number <= within.most &&
                         (!std::is_integral_v<T> || number == std::floor(number));
      if (!valid) {
        return absl::InvalidArgumentError(absl::StrCat("'", item, "' is not a ",
                                                       std::is_integral_v<T> ? "whole " : "",
                                                       "number within ", within.least, "..", within.most));
      }
      parsed.push_back(static_cast<T>(number));
    }
    return parsed;
  };
  table.AddParsed(name, numbers, absl::StrJoin(*numbers, ","), help, parse);
}

// Of C,A,B0,K1,K2 or C,A,B0,K1,K2,GRANULE. INVALID_ARGUMENT naming --cost.
absl::StatusOr<BatchCost> CostOf(const std::vector<double>& numbers);

// Prints the object on standard output as one line. NaN becomes null; names that are not UTF-8 are repaired.
void PrintJson(const nlohmann::ordered_json& json);
// The same where `as_json`, otherwise a line for each of its values.
void PrintResult(const nlohmann::ordered_json& result, bool as_json);

// A table of results. `columns`: keys of their values, each with its width (negative: to the left) and the
// digits after the point, separated by spaces, such as "policy:-15 step_s_mean:9.3". A share ("idle:6.1%") is
// shown in per cent, and a time ("step_s:9.3m") in thousandths. A result without a value has a dash there.
void PrintHead(absl::string_view columns);
void PrintRow(absl::string_view columns, const nlohmann::ordered_json& result);

}  // namespace bfio::sim
