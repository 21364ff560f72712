#include "common/workload/trace.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <streambuf>
#include <system_error>
#include <utility>

#include <zlib.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/byte_order_mark.h"
#include "common/base/rng.h"
#include "common/base/status_macros.h"
#include "common/workload/trace_row.h"

namespace bfio {
namespace {

constexpr size_t kDroppedExamples = 5;
// Of a file of one session.
constexpr size_t kMostSessionBytes = 256 << 20;
constexpr int64_t kMostSessionFiles = 100'000;

// Of a file that gzip has compressed, or of one that it has not, which zlib passes on as it is.
class GzipBuffer final : public std::streambuf {
 public:
  explicit GzipBuffer(gzFile file) : file_(file), bytes_(1 << 16, '\0') {}
  ~GzipBuffer() override { gzclose(file_); }
  GzipBuffer(const GzipBuffer&) = delete;
  GzipBuffer& operator=(const GzipBuffer&) = delete;
  bool failed() const { return failed_; }

 private:
  int_type underflow() override {
    const int count = gzread(file_, bytes_.data(), static_cast<unsigned>(bytes_.size()));
    failed_ = failed_ || count < 0;
    // zlib passes on what it has of a file that is cut off, and then says so.
    int error = Z_OK;
    gzerror(file_, &error);
    failed_ = failed_ || (error != Z_OK && error != Z_STREAM_END);
    if (count <= 0) return traits_type::eof();
    setg(bytes_.data(), bytes_.data(), bytes_.data() + count);
    return traits_type::to_int_type(bytes_[0]);
  }

  const gzFile file_;
  std::string bytes_;
  bool failed_ = false;
};

void SortAndShift(std::vector<TraceRequest>& requests) {
  std::stable_sort(requests.begin(), requests.end(),
                   [](const TraceRequest& a, const TraceRequest& b) { return a.arrival_s < b.arrival_s; });
  const double first = requests.front().arrival_s;
  for (TraceRequest& request : requests) request.arrival_s -= first;
}

}  // namespace

void DropRow(Trace& trace, absl::string_view where, absl::string_view reason) {
  ++trace.dropped;
  if (trace.dropped_examples.size() < kDroppedExamples)
    trace.dropped_examples.push_back(absl::StrCat(where, ": ", reason));
}

namespace {

absl::Status CheckNotEmpty(const Trace& trace) {
  if (!trace.requests.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "no usable row (", trace.dropped, " dropped",
      trace.dropped_examples.empty() ? "" : absl::StrCat("; ", trace.dropped_examples.front()), ")"));
}

// `first`: the first line; the session may continue after it.
absl::Status ReadSession(std::string first, std::istream& in, uint64_t sessions, const TraceOptions& options,
                         Trace& trace) {
  std::string line;
  while (first.size() <= kMostSessionBytes && std::getline(in, line)) absl::StrAppend(&first, "\n", line);
  if (first.size() > kMostSessionBytes)
    return absl::InvalidArgumentError(absl::StrCat("a session of more than ", kMostSessionBytes, " bytes"));
  return ParseSession(first, sessions, options, trace);
}

absl::Status Parse(std::istream& in, const TraceOptions& options, Trace& trace) {
  std::unique_ptr<RowParser> parser;
  std::string text;
  for (int64_t line = 1; std::getline(in, text); ++line) {
    absl::string_view view = text;
    if (line == 1) view = WithoutByteOrderMark(view);
    view = absl::StripAsciiWhitespace(view);
    if (view.empty()) continue;
    if (parser == nullptr) {
      if (BeginsSession(view)) {
        BFIO_RETURN_IF_ERROR(ReadSession(std::string(view), in, 0, options, trace));
        return CheckNotEmpty(trace);
      }
      BFIO_ASSIGN_OR_RETURN(parser, ChooseRowParser(view, options.blocks));
      trace.format = parser->format();
      trace.has_arrivals = parser->has_arrivals();
      trace.block_tokens = parser->block_tokens();
      if (!parser->first_line_is_row()) continue;
    }
    absl::StatusOr<TraceRequest> row = parser->Parse(view);
    if (row.ok()) {
      trace.requests.push_back(*std::move(row));
      if (options.max_requests > 0 && std::ssize(trace.requests) >= options.max_requests) break;
    } else {
      DropRow(trace, absl::StrCat("line ", line), row.status().message());
    }
  }
  if (parser == nullptr) return absl::InvalidArgumentError("the trace is empty");
  BFIO_RETURN_IF_ERROR(CheckNotEmpty(trace));
  SortAndShift(trace.requests);
  return absl::OkStatus();
}

absl::StatusOr<Trace> ReadFolder(const std::string& path, const TraceOptions& options) {
  std::vector<std::string> files;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(path, failed)) {
    if (std::ssize(files) == kMostSessionFiles) break;
    if (entry.is_regular_file(failed)) files.push_back(entry.path());
  }
  if (failed) return absl::NotFoundError(absl::StrCat("cannot read trace ", path, ": ", failed.message()));
  std::sort(files.begin(), files.end());
  Trace trace;
  trace.source = path;
  trace.format = "sessions";
  uint64_t sessions = 0;
  for (const std::string& file : files) {
    if (options.max_requests > 0 && std::ssize(trace.requests) >= options.max_requests) break;
    GzipBuffer buffer(gzopen(file.c_str(), "rb"));
    std::istream in(&buffer);
    std::string first;
    std::getline(in, first);
    absl::Status read = BeginsSession(first) ? ReadSession(first, in, sessions++, options, trace)
                                             : absl::InvalidArgumentError("it holds no session");
    if (read.ok() && buffer.failed()) read = absl::InvalidArgumentError("reading failed");
    if (!read.ok()) DropRow(trace, std::filesystem::path(file).filename().string(), read.message());
  }
  if (const absl::Status filled = CheckNotEmpty(trace); !filled.ok())
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", filled.message()));
  return trace;
}

}  // namespace

absl::StatusOr<Trace> ReadTrace(const std::string& path, const TraceOptions& options) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return ReadFolder(path, options);
  const gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return absl::NotFoundError(absl::StrCat("cannot open trace ", path));
  GzipBuffer buffer(file);
  std::istream in(&buffer);
  absl::StatusOr<Trace> trace = ParseTrace(in, path, options);
  if (buffer.failed())
    return absl::InvalidArgumentError(absl::StrCat(path, ": reading failed: it is damaged or cut off"));
  return trace;
}

absl::StatusOr<Trace> ParseTrace(std::istream& in, absl::string_view source, const TraceOptions& options) {
  Trace trace;
  trace.source = std::string(source);
  absl::Status parsed = Parse(in, options, trace);
  if (in.bad()) parsed = absl::InvalidArgumentError("reading failed");
  if (parsed.ok()) return trace;
  return absl::InvalidArgumentError(absl::StrCat(source, ": ", parsed.message()));
}

Trace DrawWithReplacement(const Trace& trace, int64_t requests, uint64_t seed) {
  Trace drawn;
  drawn.source = trace.source;
  drawn.format = trace.format;
  drawn.requests.resize(static_cast<size_t>(requests));
  Rng rng(seed);
  for (TraceRequest& request : drawn.requests) {
    request = trace.requests[rng.Below(trace.requests.size())];
    request.arrival_s = request.think_s = 0;
    request.after = -1;
  }
  return drawn;
}

}  // namespace bfio
