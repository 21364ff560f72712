#include "common/workload/trace.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/byte_order_mark.h"
#include "common/base/rng.h"
#include "common/workload/trace_row.h"

namespace bfio {
namespace {

constexpr size_t kDroppedExamples = 5;

void Drop(Trace& trace, int64_t line, absl::string_view reason) {
  ++trace.dropped;
  if (trace.dropped_examples.size() < kDroppedExamples) {
    trace.dropped_examples.push_back(absl::StrCat("line ", line, ": ", reason));
  }
}

void SortAndShift(std::vector<TraceRequest>& requests) {
  std::stable_sort(requests.begin(), requests.end(),
                   [](const TraceRequest& a, const TraceRequest& b) { return a.arrival_s < b.arrival_s; });
  const double first = requests.front().arrival_s;
  for (TraceRequest& request : requests) request.arrival_s -= first;
}

}  // namespace

absl::StatusOr<Trace> ReadTrace(const std::string& path, int64_t max_requests) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return absl::NotFoundError(absl::StrCat("cannot read trace ", path, ": it is a directory"));
  }
  std::ifstream in(path);
  if (!in) return absl::NotFoundError(absl::StrCat("cannot open trace ", path));
  return ParseTrace(in, path, max_requests);
}

absl::StatusOr<Trace> ParseTrace(std::istream& in, absl::string_view source, int64_t max_requests) {
  Trace trace;
  trace.source = std::string(source);
  std::unique_ptr<RowParser> parser;
  std::string text;
  for (int64_t line = 1; std::getline(in, text); ++line) {
    absl::string_view view = text;
    if (line == 1) view = WithoutByteOrderMark(view);
    if (line == 1 && absl::StartsWith(view, "\x1f\x8b"))
      return absl::InvalidArgumentError(absl::StrCat(source, ": is compressed; decompress it with gunzip"));
    view = absl::StripAsciiWhitespace(view);
    if (view.empty()) continue;
    if (parser == nullptr) {
      absl::StatusOr<std::unique_ptr<RowParser>> chosen = ChooseRowParser(view);
      if (!chosen.ok()) {
        return absl::InvalidArgumentError(absl::StrCat(source, ": ", chosen.status().message()));
      }
      parser = *std::move(chosen);
      trace.format = parser->format();
      trace.has_arrivals = parser->has_arrivals();
      if (!parser->first_line_is_row()) continue;
    }
    absl::StatusOr<TraceRequest> row = parser->Parse(view);
    if (row.ok()) {
      trace.requests.push_back(*row);
      if (max_requests > 0 && static_cast<int64_t>(trace.requests.size()) >= max_requests) break;
    } else {
      Drop(trace, line, row.status().message());
    }
  }
  if (in.bad()) return absl::InvalidArgumentError(absl::StrCat(source, ": reading failed"));
  if (parser == nullptr) return absl::InvalidArgumentError(absl::StrCat(source, ": the trace is empty"));
  if (trace.requests.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        source, ": no usable row (", trace.dropped, " dropped",
        trace.dropped_examples.empty() ? "" : absl::StrCat("; ", trace.dropped_examples.front()), ")"));
  }
  SortAndShift(trace.requests);
  return trace;
}

Trace DrawWithReplacement(const Trace& trace, int64_t requests, uint64_t seed) {
  Trace drawn;
  drawn.source = trace.source;
  drawn.format = trace.format;
  drawn.requests.resize(static_cast<size_t>(requests));
  Rng rng(seed);
  for (TraceRequest& request : drawn.requests) {
    request = trace.requests[rng.Below(trace.requests.size())];
    request.arrival_s = 0;
  }
  return drawn;
}

}  // namespace bfio
