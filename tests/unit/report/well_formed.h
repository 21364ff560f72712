// Is this piece of markup well-formed XML?
//
// Purpose: charts have to parse wherever they are copied to. Small and strict: elements, quoted attributes
// and the five named entities; no comments, no CDATA, since we write none. Threads: pure functions.
#ifndef BFIO_TESTS_UNIT_REPORT_WELL_FORMED_H_
#define BFIO_TESTS_UNIT_REPORT_WELL_FORMED_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace bfio::report {

// What is wrong and where; empty if nothing is.
std::string XmlError(absl::string_view xml);

// All <svg> elements of a page, in order.
std::vector<std::string> Svgs(absl::string_view html);

}  // namespace bfio::report

#endif  // BFIO_TESTS_UNIT_REPORT_WELL_FORMED_H_
