// One row of a trace, for each format.
//
// Purpose: what differs between formats, apart from the loop over lines in trace.cc. Pure; one thread per
// parser.
#ifndef BFIO_COMMON_WORKLOAD_TRACE_ROW_H_
#define BFIO_COMMON_WORKLOAD_TRACE_ROW_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/workload/trace.h"

namespace bfio {

// Lengths travel as uint32 and are summed per worker in int64; a longer one is a broken row.
inline constexpr int64_t kMaxTraceTokens = 2147483647;

class RowParser {
 public:
  virtual ~RowParser() = default;
  virtual std::string format() const = 0;
  virtual bool has_arrivals() const = 0;
  // True when the line the parser was chosen by is itself a row (JSONL has no header).
  virtual bool first_line_is_row() const = 0;
  // The row of one line, with arrival_s in the file's own time (seconds, any origin that loses no precision).
  // INVALID_ARGUMENT with the reason, without line number.
  virtual absl::StatusOr<TraceRequest> Parse(absl::string_view line) = 0;
};

// Chooses by the first line that is not empty. INVALID_ARGUMENT naming what was found and what is known.
absl::StatusOr<std::unique_ptr<RowParser>> ChooseRowParser(absl::string_view first_line);

}  // namespace bfio

#endif  // BFIO_COMMON_WORKLOAD_TRACE_ROW_H_
