// Parses one row of a trace, for each format. The format-specific part of the reader; trace.cc has the loop
// over lines. Pure; one thread per parser.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/workload/trace.h"

namespace bfio {

// Splits `line` at commas into `fields` (reused between calls). Fields in double quotes may contain commas
// and doubled quotes; space around a field is dropped. False when a quote is not closed or text follows a
// closing quote.
bool SplitCsvLine(absl::string_view line, std::vector<std::string>& fields);

// Lengths are uint32 on the wire and summed per worker in int64; a longer one makes the row invalid.
inline constexpr int64_t kMaxTraceTokens = 2147483647;

class RowParser {
 public:
  virtual ~RowParser() = default;
  virtual std::string format() const = 0;
  virtual bool has_arrivals() const = 0;
  // Tokens of a block of TraceRequest::blocks; 0: it names none.
  virtual int64_t block_tokens() const { return 0; }
  // True when the line by which the parser was chosen is itself a row (JSONL has no header).
  virtual bool first_line_is_row() const = 0;
  // Parses a line; arrival_s is in the file's own time (seconds from any origin that loses no precision).
  // INVALID_ARGUMENT with the reason, without the line number.
  virtual absl::StatusOr<TraceRequest> Parse(absl::string_view line) = 0;
};

// Chooses by the first non-empty line; `blocks`: rows get the names of their blocks. INVALID_ARGUMENT, naming
// what was found and the known formats.
absl::StatusOr<std::unique_ptr<RowParser>> ChooseRowParser(absl::string_view first_line, bool blocks);

// A session as one JSON object, which may begin like this; its requests are added to the trace, and what is
// not usable is counted as dropped. `sessions`: sessions read before it.
bool BeginsSession(absl::string_view text);
absl::Status ParseSession(absl::string_view text, uint64_t sessions, const TraceOptions& options,
                          Trace& trace);

// Counts a row that is not usable, by where it stands.
void DropRow(Trace& trace, absl::string_view where, absl::string_view reason);

}  // namespace bfio
