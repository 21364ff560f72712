// A chart as it stands in the page: title, legend, the drawings, the note, and its numbers to unfold.
//
// Threads: pure functions.
#ifndef BFIO_TOOLS_REPORT_FIGURE_H_
#define BFIO_TOOLS_REPORT_FIGURE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "tools/report/chart.h"

namespace bfio::report {

// `id` is unique in the page.
std::string Figure(const Chart& chart, absl::string_view id);

}  // namespace bfio::report

#endif  // BFIO_TOOLS_REPORT_FIGURE_H_
