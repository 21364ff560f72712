// An HTML page that draws JSON in the browser: one file, no references to anything outside.
//
// Purpose: page.html with a chart library, a program's data and the script that shows them. Threads: any, no
// state.
#ifndef BFIO_TOOLS_PAGE_PAGE_H_
#define BFIO_TOOLS_PAGE_PAGE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace bfio {

// `script` finds `data` in a variable of that name, and draws with the functions of page.html.
// REQUIRES: no "</script" in `script`; `data` may contain anything.
std::string HtmlPage(absl::string_view script, const nlohmann::ordered_json& data);

}  // namespace bfio

#endif  // BFIO_TOOLS_PAGE_PAGE_H_
