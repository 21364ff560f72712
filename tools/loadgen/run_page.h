// The report of one run as a self-contained HTML page.
//
// Purpose: everything about a run on one page that can be mailed: figures, goodput, knee, charts over time
// and of distributions, the group's loads, failures, settings. Pure.
#ifndef BFIO_TOOLS_LOADGEN_RUN_PAGE_H_
#define BFIO_TOOLS_LOADGEN_RUN_PAGE_H_

#include <string>

#include "tools/loadgen/run_document.h"
#include "tools/report/chart.h"
#include "tools/report/page.h"

namespace bfio::loadgen {

std::string RunPage(const RunDocument& run);

// Leaves out a chart without data.
void AddIfAny(report::Page* page, report::Chart chart);

// "conversation, closed loop of 64 requests": what the run was, in a few words.
std::string WorkloadText(const RunDocument& run);

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_RUN_PAGE_H_
