// The results of a run as a table, as JSON and as a self-contained HTML page, which can be mailed.
//
// Purpose: all contain the same measurements. Pure. JSON is in seconds throughout; the table shows
// milliseconds where they are easier to read.
#pragma once

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/workload/trace.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/loadgen/barrier.h"
#include "tools/loadgen/options.h"
#include "tools/loadgen/results.h"

namespace bfio::loadgen {

struct Report {
  const Options& options;
  const Trace& trace;
  const Results& results;
  std::optional<BarrierMeasurements> barrier;
  std::string version;
  // Time of the wall clock.
  absl::Time started_at;
  bool interrupted = false;
};

// One object, indented, with a line break at the end. Its keys are a contract: scripts read them.
std::string ToJson(const Report& report);
nlohmann::ordered_json ResultJson(const Report& report);

std::string ToTable(const Report& report);

// The page's data is the result with "distributions" and "series"; run_page.js draws it. Its size is bounded,
// however long the run was.
std::string RunPage(const Report& report);

}  // namespace bfio::loadgen
