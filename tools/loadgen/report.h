// The results as people and as scripts read them.
//
// Purpose: a table and a JSON object out of the same figures. Pure. Seconds throughout in JSON; the table
// shows milliseconds where that reads better.
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
  std::optional<BarrierFigures> barrier;
  // Where the router's steps were read.
  std::optional<GroupTimeline> group;
  std::string version;
  // Wall clock.
  absl::Time started_at;
  bool interrupted = false;
};

// One object, indented, with a line break at the end. Keys are a contract: scripts read them.
std::string ToJson(const Report& report);

// The same object with "distributions", "series" and, where there is a group, "group" in it: what a report
// page is made of. Bounded in size, however long the run was.
std::string ToSavedJson(const Report& report);

std::string ToTable(const Report& report);

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_REPORT_H_
