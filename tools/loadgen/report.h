// The results of a run as a table and as JSON.
//
// Purpose: both contain the same measurements. Pure. JSON is in seconds throughout; the table shows
// milliseconds where they are easier to read.
#ifndef BFIO_TOOLS_LOADGEN_REPORT_H_
#define BFIO_TOOLS_LOADGEN_REPORT_H_

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/workload/trace.h"
#include "tools/loadgen/barrier.h"
#include "tools/loadgen/group_timeline.h"
#include "tools/loadgen/options.h"
#include "tools/loadgen/results.h"

namespace bfio::loadgen {

struct Report {
  const Options& options;
  const Trace& trace;
  const Results& results;
  std::optional<BarrierMeasurements> barrier;
  // Absent when the router's steps were not read.
  std::optional<GroupTimeline> group;
  std::string version;
  // Time of the wall clock.
  absl::Time started_at;
  bool interrupted = false;
};

// One object, indented, with a line break at the end. Its keys are a contract: scripts read them.
std::string ToJson(const Report& report);

// A self-contained HTML page, which run_page.js draws. Its data is the same object with "distributions",
// "series" and, if there is one, "group". Its size is bounded, however long the run was.
std::string ToPage(const Report& report);

std::string ToTable(const Report& report);

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_REPORT_H_
