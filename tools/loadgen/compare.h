// Comparison of two or more runs: measurements and settings that differ.
//
// Purpose: compares each run with the first one. Pure.
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
  // Value of each run; NaN where the run has none.
  std::vector<double> values;
  // Relative change of each run against the first; empty where a value is missing or the first is
  // 0.
  std::vector<std::optional<double>> changes;
};

// Rows for which no run has a value are left out.
std::vector<Difference> Differences(const std::vector<RunDocument>& runs);

struct SettingDifference {
  std::string name;
  std::vector<std::string> values;
};

// Only settings that differ, names of files and addresses included.
std::vector<SettingDifference> SettingDifferences(const std::vector<RunDocument>& runs);

std::string ComparisonText(const std::vector<RunDocument>& runs);

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_COMPARE_H_
