// The look of a page.
//
// Purpose: all colours, fonts and line widths in one place; markup elsewhere names classes only. Threads: a
// constant.
#ifndef BFIO_TOOLS_REPORT_STYLE_H_
#define BFIO_TOOLS_REPORT_STYLE_H_

#include "absl/strings/string_view.h"

namespace bfio::report {

// For a <style> element. Refers to nothing outside the page.
absl::string_view StyleSheet();

}  // namespace bfio::report

#endif  // BFIO_TOOLS_REPORT_STYLE_H_
