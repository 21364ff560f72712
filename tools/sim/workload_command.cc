#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/sim/commands.h"
#include "tools/sim/run/workload.h"

namespace bfio::sim {
namespace {

void PrintRequests(const Trace& trace) {
  std::cout << (trace.has_arrivals ? "arrived_at," : "") << "num_prefill_tokens,num_decode_tokens\n";
  for (const TraceRequest& request : trace.requests) {
    if (trace.has_arrivals) std::cout << absl::StrFormat("%.9g,", request.arrival_s);
    std::cout << request.prompt_tokens << ',' << request.output_tokens << '\n';
  }
}

void PrintSummary(const Trace& trace, const SimOptions& options) {
  double prompt = 0;
  for (const TraceRequest& request : trace.requests) prompt += static_cast<double>(request.prompt_tokens);
  nlohmann::ordered_json summary;
  summary["workload"] = trace.source;
  summary["requests"] = trace.requests.size();
  summary["has_arrivals"] = trace.has_arrivals;
  summary["requests_per_s"] = trace.has_arrivals ? ArrivalRate(trace) : 0;
  summary["prompt_tokens_mean"] = prompt / static_cast<double>(trace.requests.size());
  summary["output_tokens_mean"] = MeanOutputTokens(trace);
  summary["workers"] = options.workers;
  summary["batch"] = options.batch;
  summary["saturation_requests_per_s"] =
      FullSlotRequestRate(trace, options.workers, options.batch, options.cost);
  PrintJson(summary);
}

}  // namespace

absl::Status RunWorkloadCommand(const ReadOptions& read) {
  SimOptions options;
  WorkloadOptions workload;
  bool json = false;
  OptionTable table;
  AddRunOptions(table, options);
  table.Add("ranks|workers", &options.workers, Within(1, 65536),
            "G, number of ranks that meet in one barrier");
  AddWorkload(table, workload);
  AddJson(table, json);
  read(table);
  EndWithRequests(table, options);
  BFIO_RETURN_IF_ERROR(Validate(options));
  BFIO_ASSIGN_OR_RETURN(const Trace trace, ReadWorkload(workload, options.seed, options.requests));
  if (trace.requests.empty()) return absl::InvalidArgumentError(absl::StrCat(trace.source, ": no requests"));
  if (json) {
    PrintSummary(trace, options);
  } else {
    PrintRequests(trace);
  }
  std::cout.flush();
  return absl::OkStatus();
}

}  // namespace bfio::sim
