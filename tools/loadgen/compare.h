// Two runs or more beside each other: what differs in their figures, and in their settings.
//
// Purpose: the first run is what the others are compared with. Text and page show the same figures. Pure.
// REQUIRES: at least one run.
#ifndef BFIO_TOOLS_LOADGEN_COMPARE_H_
#define BFIO_TOOLS_LOADGEN_COMPARE_H_

#include <optional>
#include <string>
#include <vector>

#include "tools/loadgen/run_document.h"

namespace bfio::loadgen {

struct Difference {
  std::string name;
  // NaN where the run has none.
  std::vector<double> values;
  // Of each run to the first, as a share of the first; nothing where one is missing or the first is 0.
  std::vector<std::optional<double>> changes;
};

// Rows that no run has are left out.
std::vector<Difference> Differences(const std::vector<RunDocument>& runs);

struct SettingDifference {
  std::string name;
  std::vector<std::string> values;
};

// Only those that differ; names of files and addresses among them.
std::vector<SettingDifference> SettingDifferences(const std::vector<RunDocument>& runs);

std::string ComparisonText(const std::vector<RunDocument>& runs);

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_COMPARE_H_
