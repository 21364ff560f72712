// Request traces: CSV, JSONL and JSON.
#include <sstream>

#include "common/workload/trace.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::istringstream in{std::string(bfio::fuzz::Text(data, size))};
  const auto trace = bfio::ParseTrace(in, "fuzz", {.blocks = true});
  if (!trace.ok()) return 0;
  bfio::fuzz::Check(!trace->requests.empty(), "a trace has requests");
  double before = 0;
  for (const bfio::TraceRequest& request : trace->requests) {
    bfio::fuzz::Check(request.prompt_tokens >= 1 && request.output_tokens >= 1, "every length is at least 1");
    bfio::fuzz::Check(request.arrival_s >= before, "sorted by arrival, from 0, and no NaN");
    before = request.arrival_s;
    bfio::fuzz::Check(request.after < &request - trace->requests.data() && request.think_s >= 0,
                      "a request follows an earlier one");
  }
  return 0;
}
