// One or more runs as a self-contained HTML page.
//
// Purpose: one file that can be mailed. The page's data is {"runs": [{"name", "result"}]} with the saved
// results unchanged; for several runs also "differences" and "settings" (compare.h). run_page.js draws it.
// Pure.
#ifndef BFIO_TOOLS_LOADGEN_RUN_PAGE_H_
#define BFIO_TOOLS_LOADGEN_RUN_PAGE_H_

#include <string>
#include <vector>

#include "tools/loadgen/run_document.h"

namespace bfio::loadgen {

// REQUIRES: at least one run.
std::string RunPage(const std::vector<RunDocument>& runs);

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_RUN_PAGE_H_
