// Findings as files and as text.
//
// Purpose: one CSV per table, one JSON of everything, one self-contained HTML page; and the tables as text
// for a terminal. Threads: any, no state.
#ifndef BFIO_TOOLS_SIM_EXPERIMENT_OUTPUT_H_
#define BFIO_TOOLS_SIM_EXPERIMENT_OUTPUT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/sim/experiment/experiment.h"

namespace bfio::sim {

// INVALID_ARGUMENT, naming the folder, when it is not there and cannot be made.
absl::Status MakeFolder(const std::string& folder);

// Writes NAME.csv (NAME_2.csv, ... for further tables), NAME.json and NAME.html into `folder`, which is made.
// Returns the paths.
absl::StatusOr<std::vector<std::string>> WriteFindings(const Findings& findings, const std::string& folder);

nlohmann::ordered_json FindingsJson(const Findings& findings);
std::string FindingsHtml(const Findings& findings);
// A table in columns, as wide as it needs.
std::string TableText(const report::Table& table);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_EXPERIMENT_OUTPUT_H_
