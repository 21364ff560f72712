// One run, or several beside each other, as a self-contained HTML page.
//
// Purpose: everything about runs on one page that can be mailed. The page's data is {"runs": [{"name",
// "result"}]} with the saved results as they are; of several runs "differences" and "settings" too
// (compare.h). run_page.js shows them. Pure.
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
