// Splits a line of CSV into fields. Pure functions; any thread.
#ifndef BFIO_COMMON_WORKLOAD_CSV_H_
#define BFIO_COMMON_WORKLOAD_CSV_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace bfio {

// Splits `line` at commas into `fields` (reused between calls). Fields in double quotes may contain commas
// and doubled quotes; space around a field is dropped. False when a quote is not closed or text follows a
// closing quote.
bool SplitCsvLine(absl::string_view line, std::vector<std::string>& fields);

}  // namespace bfio

#endif  // BFIO_COMMON_WORKLOAD_CSV_H_
