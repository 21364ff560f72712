// An HTML page that draws JSON in the browser: one file, without references to anything outside.
//
// Purpose: combines page.html and its chart library with a program's data and the script that shows them.
// Threads: any, no state.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace bfio {

// `script` finds the JSON in the variable `data` and draws it with the functions of page.html.
// REQUIRES: no "</script" in `script`; `data` may contain anything.
std::string HtmlPage(absl::string_view script, const nlohmann::ordered_json& data);

}  // namespace bfio
