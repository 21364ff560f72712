// Charts of one run, or of several runs as one line each.
//
// Purpose: what the report of a run and that of a comparison show alike. Charts without data are left out by
// the caller (HasData). Pure functions over documents.
#ifndef BFIO_TOOLS_LOADGEN_RUN_CHARTS_H_
#define BFIO_TOOLS_LOADGEN_RUN_CHARTS_H_

#include <string>
#include <vector>

#include "tools/loadgen/run_document.h"
#include "tools/report/chart.h"

namespace bfio::loadgen {

// One line of a chart: of `run`, y at `y_path` over x at `x_path`, times a factor.
report::Series LineOf(const RunDocument& run, std::string name, const std::string& x_path,
                      const std::string& y_path, double factor = 1);

bool HasData(const report::Chart& chart);

// Seconds of y become milliseconds where all are below one second, and the axis logarithmic where they span
// more than some fifty-fold.
void FitSeconds(report::Chart* chart);

// From the start to the end of the longest run, alike on all charts of a page.
report::Axis TimeAxis(const std::vector<RunDocument>& runs);

// Of one run.
report::Chart ThroughputChart(const RunDocument& run);
report::Chart RequestsChart(const RunDocument& run);
report::Chart UnderWayChart(const RunDocument& run);
// `key`: "ttft_s", "tpot_s", "itl_s", "e2e_s" or "schedule_lag_s".
report::Chart LatencyChart(const RunDocument& run, const std::string& key);
report::Chart DistributionChart(const RunDocument& run);
report::Chart RankLoadChart(const RunDocument& run);
report::Chart RankIdleChart(const RunDocument& run);
report::Chart LevelRatesChart(const RunDocument& run);
report::Chart LevelLatencyChart(const RunDocument& run);

// Of several.
report::Chart ThroughputChart(const std::vector<RunDocument>& runs);
report::Chart LatencyChart(const std::vector<RunDocument>& runs, const std::string& key);
report::Chart DistributionChart(const std::vector<RunDocument>& runs, const std::string& key);
report::Chart IdleChart(const std::vector<RunDocument>& runs);
report::Chart LevelLatencyChart(const std::vector<RunDocument>& runs);

// "TTFT" for "ttft_s", and "time to first token".
std::string LatencyName(const std::string& key);
std::string LatencyMeaning(const std::string& key);

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_RUN_CHARTS_H_
