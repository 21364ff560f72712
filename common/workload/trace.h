// Request traces: (arrival, prompt length, output length) from files or from built-in profiles, and where a
// file tells them, what prompts share and which request follows which. One reader for all common formats,
// used by the traffic generator and the simulator. Pure except for the file that it reads. Lengths in tokens,
// times in seconds from the first request.
#pragma once

#include <cstdint>
#include <istream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bfio {

struct TraceRequest {
  // Seconds after the first request; 0 when the trace has no arrivals.
  double arrival_s = 0;
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  // Names of the prompt's blocks of Trace::block_tokens, the last one possibly shorter; the rest of the
  // prompt is its own. Two prompts begin alike as far as their names are equal. Only where they were asked
  // for.
  std::vector<uint64_t> blocks;
  // Index of the request of the same session that must have ended before, and the time from its end; -1:
  // none.
  int64_t after = -1;
  double think_s = 0;
};

struct Trace {
  std::string source;
  std::string format;  // "azure", "burstgpt", "mooncake", "bailian", "sessions", "generic", "profile"
  bool has_arrivals = false;
  // Tokens of a block; 0: the format has no blocks.
  int64_t block_tokens = 0;
  // Sorted by arrival (stable), sessions one after the other; every length is at least 1.
  std::vector<TraceRequest> requests;
  // Rows that could not be used (malformed, zero or negative lengths), and messages for the first few of
  // them: "line 7: ...".
  int64_t dropped = 0;
  // Memory of `requests`.
  int64_t bytes = 0;
  std::vector<std::string> dropped_examples;
};

// Reads a CSV (columns found by name, any order, extra ones ignored), JSONL or JSON trace, compressed by gzip
// or not; the format is detected from its beginning:
//   Azure     TIMESTAMP,ContextTokens,GeneratedTokens (absolute times, up to 7 fractional digits)
//   BurstGPT  Timestamp,...,Request tokens,Response tokens,... (seconds)
//   Mooncake  JSONL with timestamp (ms), input_length, output_length, hash_ids (blocks of 512 tokens)
//   Bailian   the same with chat_id, turn, and timestamp in seconds (blocks of 16)
//   generic   arrived_at,num_prefill_tokens,num_decode_tokens (arrived_at in seconds, may be absent)
//   sessions  JSON with block_size, hash_id_scope and requests {in, out, hash_ids, think_time}: a session of
//             an agent; a folder of such files has all their sessions
// Bad rows are dropped and counted. NOT_FOUND when the file cannot be opened; INVALID_ARGUMENT when no format
// fits, no usable row is left, or it is too large.
struct TraceOptions {
  // Stops after that many usable rows; 0: reads all.
  int64_t max_requests = 0;
  // Keeps the names of blocks, where the format has them.
  bool blocks = false;
  // Bound of Trace::bytes: a request takes 64, and each of its blocks 8.
  int64_t most_bytes = int64_t{2} << 30;
};
absl::StatusOr<Trace> ReadTrace(const std::string& path, const TraceOptions& options = {});

// The same from a stream that is not compressed; `source` is its name in messages.
absl::StatusOr<Trace> ParseTrace(std::istream& in, absl::string_view source,
                                 const TraceOptions& options = {});

// Built-in synthetic profiles, for use without a file: quantile tables of prompt and output lengths
// (profile.cc documents their sources), drawn per request: correlated for "burstgpt" and "correlated",
// independently for the others. A profile has no arrivals (has_arrivals = false). NOT_FOUND, listing the
// profiles, for an unknown name.
absl::StatusOr<Trace> SampleProfile(absl::string_view name, int64_t requests, uint64_t seed);

std::vector<std::string> ProfileNames();

// `requests` rows of `trace`, each drawn uniformly with replacement. Prompt and output of a row stay
// together; arrivals are dropped. REQUIRES: trace.requests is not empty, requests >= 0.
Trace DrawWithReplacement(const Trace& trace, int64_t requests, uint64_t seed);

// Parses one row of a trace, for each format. The format-specific part of the reader; trace.cc has the loop
// over lines. Pure; one thread per parser.

// Splits `line` at commas into `fields` (reused between calls). Fields in double quotes may contain commas
// and doubled quotes; space around a field is dropped. False when a quote is not closed, text follows a
// closing quote, or there are thousands of fields.
bool SplitCsvLine(absl::string_view line, std::vector<std::string>& fields);

// Far above the length of any model; a longer one makes the row invalid. A simulated rank has a list for each
// step of the longest output.
inline constexpr int64_t kMaxTraceTokens = int64_t{1} << 22;

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
