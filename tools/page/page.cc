#include "tools/page/page.h"

#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"
#include "tools/page/page_files.h"

namespace bfio {

std::string HtmlPage(absl::string_view script, const nlohmann::ordered_json& data) {
  std::string json = data.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  // In JSON a '<' occurs only inside strings. Unescaped, it could end the HTML element or open a comment.
  absl::StrReplaceAll({{"<", "\\u003c"}}, &json);
  return absl::StrReplaceAll(
      page::kPageHtml, {{"{{library}}", page::kChartMinJs}, {"{{data}}", json}, {"{{script}}", script}});
}

}  // namespace bfio
