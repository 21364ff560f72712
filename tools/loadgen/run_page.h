// A run as a self-contained HTML page, which can be mailed.
//
// Purpose: the page's data is the result with "distributions" and "series"; run_page.js draws it. Its size is
// bounded, however long the run was. Pure.
#ifndef BFIO_TOOLS_LOADGEN_RUN_PAGE_H_
#define BFIO_TOOLS_LOADGEN_RUN_PAGE_H_

#include <string>

#include "tools/loadgen/report.h"

namespace bfio::loadgen {

std::string RunPage(const Report& report);

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_RUN_PAGE_H_
