// Text on its way into HTML and SVG.
//
// Purpose: the one place where text becomes markup, so that nothing a caller passes can break a page.
// Threads: pure functions. Widths are in SVG user units (about one CSS pixel).
#ifndef BFIO_TOOLS_REPORT_MARKUP_H_
#define BFIO_TOOLS_REPORT_MARKUP_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace bfio::report {

// Safe as element text and inside double quotes, in HTML and in XML. Control characters and malformed UTF-8,
// which XML forbids, become U+FFFD.
std::string Escape(absl::string_view text);

// "label [unit]", or the label alone. Not escaped.
std::string WithUnit(absl::string_view name, absl::string_view unit);

// An upper estimate of how wide `text` is in a sans-serif font of this size; there is no font to ask.
double TextWidth(absl::string_view text, double font_size);

// Broken at spaces into lines of at most `width` where words allow; never empty.
std::vector<std::string> WrapText(absl::string_view text, double width, double font_size);

// `text`, or its beginning with an ellipsis if it has more than `characters`.
std::string Shortened(absl::string_view text, size_t characters);

}  // namespace bfio::report

#endif  // BFIO_TOOLS_REPORT_MARKUP_H_
