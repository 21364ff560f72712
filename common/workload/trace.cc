#include "common/workload/trace.h"

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <optional>
#include <streambuf>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/base/annotated.h"
#include "common/base/byte_order_mark.h"
#include "common/base/rng.h"
#include "common/base/status_macros.h"
#include "common/json/json_reader.h"

namespace bfio {
namespace {

constexpr size_t kDroppedExamples = 5;
// Of a file of one session, and of any line.
constexpr size_t kMostSessionBytes = 256 << 20;
constexpr size_t kMostColumns = 4096;
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
    const auto size = static_cast<size_t>(count);
    const size_t end = absl::string_view(bytes_.data(), size).rfind('\n');
    line_bytes_ = end == absl::string_view::npos ? line_bytes_ + size : size - end;
    failed_ = failed_ || line_bytes_ > kMostSessionBytes;
    if (failed_) return traits_type::eof();
    setg(bytes_.data(), bytes_.data(), bytes_.data() + count);
    return traits_type::to_int_type(bytes_[0]);
  }

  const gzFile file_;
  std::string bytes_;
  size_t line_bytes_ = 0;
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

absl::Status Add(TraceRequest row, const TraceOptions& options, Trace& trace) {
  trace.bytes += static_cast<int64_t>(sizeof row + sizeof(uint64_t) * row.blocks.size());
  if (trace.bytes > options.most_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("more than ", trace.requests.size(),
                                                   " requests, which take ", options.most_bytes >> 20,
                                                   " MiB of memory: it is too large"));
  }
  trace.requests.push_back(std::move(row));
  return absl::OkStatus();
}

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
      BFIO_RETURN_IF_ERROR(Add(*std::move(row), options, trace));
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
  BFIO_RETURN_IF_ERROR(Annotated(path, CheckNotEmpty(trace)));
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
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": reading failed: it is damaged or cut off, or a line is too long"));
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

namespace {

struct CsvFormat {
  const char* name;
  const char* arrival;
  const char* prompt;
  const char* output;
  // The time column has dates instead of seconds.
  bool dates;
  bool arrival_required;
};

constexpr CsvFormat kCsvFormats[] = {
    {"azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", true, true},
    {"burstgpt", "Timestamp", "Request tokens", "Response tokens", false, true},
    {"generic", "arrived_at", "num_prefill_tokens", "num_decode_tokens", false, false},
};

absl::Status Bad(absl::string_view column, absl::string_view text, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(column, " '", text.substr(0, 40), "' ", what));
}

// SimpleAtod reads hexadecimal numbers too.
bool ReadDecimal(absl::string_view text, double& value) {
  return !absl::StrContains(text, 'x') && !absl::StrContains(text, 'X') && absl::SimpleAtod(text, &value);
}

absl::StatusOr<int64_t> CheckLength(absl::string_view column, double value, absl::string_view text) {
  // Compared as double, because a value beyond int64 must not be converted first.
  if (!(std::floor(value) == value)) return Bad(column, text, "is not a whole number");
  if (value < 1) return Bad(column, text, "is not positive");
  if (value > static_cast<double>(kMaxTraceTokens)) return Bad(column, text, "is too large");
  return static_cast<int64_t>(value);
}

// Spreadsheets and data frames often write whole numbers as "374.0".
absl::StatusOr<int64_t> ParseLength(absl::string_view column, absl::string_view text) {
  double value = 0;
  if (!ReadDecimal(text, value)) return Bad(column, text, "is not a number");
  return CheckLength(column, value, text);
}

absl::StatusOr<double> CheckSeconds(absl::string_view column, double value, absl::string_view text) {
  // Holds for seconds since 1970; a replay would wait forever for a greater one.
  constexpr double kLimit = 1e11;
  if (!(std::abs(value) < kLimit)) return Bad(column, text, "is not a time in seconds");
  return value;
}

absl::StatusOr<double> ParseSeconds(absl::string_view column, absl::string_view text) {
  double value = 0;
  if (!ReadDecimal(text, value)) return Bad(column, text, "is not a time in seconds");
  return CheckSeconds(column, value, text);
}

// "2023-11-16 18:15:46.6805900", "...+00:00" as in 2024, and both with 'T' instead of the space.
absl::StatusOr<absl::Time> ParseDate(absl::string_view column, absl::string_view text) {
  absl::Time time;
  for (const char* format :
       {"%Y-%m-%d %H:%M:%E*S", "%Y-%m-%d %H:%M:%E*S%Ez", "%Y-%m-%dT%H:%M:%E*S", "%Y-%m-%dT%H:%M:%E*S%Ez"}) {
    if (absl::ParseTime(format, text, &time, nullptr) && time != absl::InfiniteFuture() &&
        time != absl::InfinitePast()) {
      return time;
    }
  }
  return Bad(column, text, "is not a date and time");
}

class CsvRowParser : public RowParser {
 public:
  CsvRowParser(const CsvFormat& format, int arrival, int prompt, int output)
      : format_(format), arrival_(arrival), prompt_(prompt), output_(output) {}

  std::string format() const override { return format_.name; }
  bool has_arrivals() const override { return arrival_ >= 0; }
  bool first_line_is_row() const override { return false; }

  absl::StatusOr<TraceRequest> Parse(absl::string_view line) override {
    if (!SplitCsvLine(line, fields_)) return absl::InvalidArgumentError("broken quotes or too many fields");
    const int needed = 1 + std::max({arrival_, prompt_, output_});
    if (static_cast<int>(fields_.size()) < needed) {
      return absl::InvalidArgumentError(
          absl::StrCat(fields_.size(), " fields, at least ", needed, " expected"));
    }
    TraceRequest row;
    BFIO_ASSIGN_OR_RETURN(row.prompt_tokens,
                          ParseLength(format_.prompt, fields_[static_cast<size_t>(prompt_)]));
    BFIO_ASSIGN_OR_RETURN(row.output_tokens,
                          ParseLength(format_.output, fields_[static_cast<size_t>(output_)]));
    if (arrival_ >= 0) {
      BFIO_ASSIGN_OR_RETURN(row.arrival_s, ParseArrival(fields_[static_cast<size_t>(arrival_)]));
    }
    return row;
  }

 private:
  absl::StatusOr<double> ParseArrival(const std::string& text) {
    if (!format_.dates) return ParseSeconds(format_.arrival, text);
    BFIO_ASSIGN_OR_RETURN(const absl::Time time, ParseDate(format_.arrival, text));
    // A double holds seconds since 1970 only to about 0.2 us; relative to the first row no precision is lost.
    if (!origin_) origin_ = time;
    return absl::ToDoubleSeconds(time - *origin_);
  }

  const CsvFormat& format_;
  const int arrival_, prompt_, output_;
  std::optional<absl::Time> origin_;
  std::vector<std::string> fields_;
};

// A row may have the hashes of many blocks.
constexpr JsonLimits kRowLimits = {.bytes = 16 << 20, .values = 1 << 20};
constexpr int64_t kMooncakeBlock = 512, kBailianBlock = 16;
// Limits of a whole session, and of one of its requests.
constexpr JsonLimits kSessionLimits = {.bytes = 257 << 20, .values = 1 << 20};

absl::StatusOr<double> Number(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) return absl::InvalidArgumentError(absl::StrCat("no ", key));
  if (!found->is_number() || !std::isfinite(found->get<double>()))
    return Bad(key, found->dump(), "is not a number");
  return found->get<double>();
}

absl::StatusOr<int64_t> Length(const nlohmann::json& json, const char* key) {
  BFIO_ASSIGN_OR_RETURN(const double value, Number(json, key));
  return CheckLength(key, value, json.find(key)->dump());
}

// `salt`: 0 for names that are the same in the whole trace.
absl::StatusOr<std::vector<uint64_t>> Blocks(const nlohmann::json& json, uint64_t salt) {
  std::vector<uint64_t> blocks;
  const auto found = json.find("hash_ids");
  if (found == json.end() || found->is_null()) return blocks;
  if (!found->is_array()) return absl::InvalidArgumentError("hash_ids is not a list");
  for (const nlohmann::json& id : *found) {
    if (!id.is_number_integer()) return absl::InvalidArgumentError("hash_ids has what is not a whole number");
    blocks.push_back(Mix64(static_cast<uint64_t>(id.get<int64_t>()) ^ salt));
  }
  return blocks;
}

// Mooncake's traces have milliseconds. Bailian's have the same names with seconds, and the turns of chats.
class JsonRowParser : public RowParser {
 public:
  JsonRowParser(bool seconds, bool blocks) : seconds_(seconds), blocks_(blocks) {}

  std::string format() const override { return seconds_ ? "bailian" : "mooncake"; }
  bool has_arrivals() const override { return true; }
  int64_t block_tokens() const override { return seconds_ ? kBailianBlock : kMooncakeBlock; }
  bool first_line_is_row() const override { return true; }

  absl::StatusOr<TraceRequest> Parse(absl::string_view line) override {
    BFIO_ASSIGN_OR_RETURN(const nlohmann::json json,
                          ReadJsonObject(line, "", kRowLimits,
                                         {"timestamp", "input_length", "output_length",
                                          blocks_ ? "hash_ids" : "output_length"}));
    TraceRequest row;
    BFIO_ASSIGN_OR_RETURN(const double timestamp, Number(json, "timestamp"));
    BFIO_ASSIGN_OR_RETURN(row.prompt_tokens, Length(json, "input_length"));
    BFIO_ASSIGN_OR_RETURN(row.output_tokens, Length(json, "output_length"));
    BFIO_ASSIGN_OR_RETURN(row.arrival_s, CheckSeconds("timestamp", seconds_ ? timestamp : timestamp / 1000,
                                                      json.find("timestamp")->dump()));
    if (blocks_) {
      BFIO_ASSIGN_OR_RETURN(row.blocks, Blocks(json, 0));
    }
    return row;
  }

 private:
  const bool seconds_, blocks_;
};

absl::StatusOr<TraceRequest> SessionRequest(const nlohmann::json& json, bool blocks, uint64_t salt) {
  TraceRequest request;
  BFIO_ASSIGN_OR_RETURN(request.prompt_tokens, Length(json, "in"));
  BFIO_ASSIGN_OR_RETURN(request.output_tokens, Length(json, "out"));
  if (json.contains("think_time")) {
    BFIO_ASSIGN_OR_RETURN(const double think, Number(json, "think_time"));
    BFIO_ASSIGN_OR_RETURN(request.think_s,
                          CheckSeconds("think_time", think, json.find("think_time")->dump()));
    if (request.think_s < 0) return absl::InvalidArgumentError("think_time is negative");
  }
  if (blocks) {
    BFIO_ASSIGN_OR_RETURN(request.blocks, Blocks(json, salt));
  }
  return request;
}

int FindColumn(const std::vector<std::string>& columns, absl::string_view name) {
  for (size_t i = 0; i < columns.size(); ++i) {
    if (absl::EqualsIgnoreCase(columns[i], name)) return static_cast<int>(i);
  }
  return -1;
}

// Takes the quoted field at the start of `rest`, including its closing quote.
bool TakeQuoted(absl::string_view& rest, std::string& field) {
  field.clear();
  for (size_t i = 1; i < rest.size(); ++i) {
    if (rest[i] != '"') {
      field.push_back(rest[i]);
    } else if (i + 1 < rest.size() && rest[i + 1] == '"') {
      field.push_back(rest[i++]);
    } else {
      rest = absl::StripLeadingAsciiWhitespace(rest.substr(i + 1));
      return rest.empty() || rest[0] == ',';
    }
  }
  return false;
}

}  // namespace

bool BeginsSession(absl::string_view text) {
  // An object that is whole in its line is a row of JSONL, except for one with requests.
  return absl::StartsWith(text, "{") &&
         (!absl::EndsWith(text, "}") || absl::StrContains(text, "\"requests\":") ||
          absl::StrContains(text, "\"requests\" :"));
}

absl::Status ParseSession(absl::string_view text, uint64_t sessions, const TraceOptions& options,
                          Trace& trace) {
  // The names of blocks hold in one session, unless it says otherwise.
  uint64_t salt = Mix64(sessions + 1);
  int64_t last = -1, number = 0;
  const auto wanted = [&](const JsonPath& path) {
    return (path.Is({"requests", ""}) && path.kind == JsonPath::Kind::kObject) || path.Is({"block_size"}) ||
           path.Is({"hash_id_scope"});
  };
  BFIO_RETURN_IF_ERROR(
      ReadJson(text, "", kSessionLimits, wanted, [&](JsonPath& path, nlohmann::json& value) -> absl::Status {
        if (path.Is({"hash_id_scope"})) {
          if (value == "global") salt = 0;
        } else if (path.Is({"block_size"})) {
          if (!value.is_number_unsigned() || value < 1 || value > 65'536)
            return Bad("block_size", value.dump(), "is not a number of tokens");
          const auto tokens = value.get<int64_t>();
          if (trace.block_tokens != 0 && trace.block_tokens != tokens)
            return absl::InvalidArgumentError("block_size differs from other sessions'");
          trace.block_tokens = tokens;
        } else if (options.max_requests == 0 || std::ssize(trace.requests) < options.max_requests) {
          ++number;
          auto request = SessionRequest(value, options.blocks, salt);
          if (request.ok()) {
            request->after = last;
            last = std::ssize(trace.requests);
            BFIO_RETURN_IF_ERROR(Add(*std::move(request), options, trace));
          } else {
            DropRow(trace, absl::StrCat("request ", number), request.status().message());
          }
        }
        return absl::OkStatus();
      }));
  trace.format = "sessions";
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RowParser>> ChooseRowParser(absl::string_view first_line, bool blocks) {
  if (!first_line.empty() && first_line[0] == '{') {
    const auto chat = ReadJsonObject(first_line, "", kRowLimits, {"chat_id", "turn"});
    return std::make_unique<JsonRowParser>(/*seconds=*/chat.ok() && !chat->empty(), blocks);
  }
  std::vector<std::string> columns;
  if (SplitCsvLine(first_line, columns)) {
    for (const CsvFormat& format : kCsvFormats) {
      const int arrival = FindColumn(columns, format.arrival);
      const int prompt = FindColumn(columns, format.prompt), output = FindColumn(columns, format.output);
      if (prompt < 0 || output < 0 || (format.arrival_required && arrival < 0)) continue;
      return std::make_unique<CsvRowParser>(format, arrival, prompt, output);
    }
  }
  std::vector<std::string> known;
  for (const CsvFormat& format : kCsvFormats)
    known.push_back(absl::StrCat(format.arrival, ",", format.prompt, ",", format.output));
  return absl::InvalidArgumentError(
      absl::StrCat("the header '", first_line.substr(0, 100), "' fits no known trace format (columns ",
                   absl::StrJoin(known, "; "),
                   "; or JSON lines with timestamp, input_length, output_length; or JSON with requests)"));
}

bool SplitCsvLine(absl::string_view line, std::vector<std::string>& fields) {
  size_t count = 0;
  absl::string_view rest = line;
  for (;;) {
    if (count == kMostColumns) return false;
    if (fields.size() <= count) fields.emplace_back();
    std::string& field = fields[count++];
    rest = absl::StripLeadingAsciiWhitespace(rest);
    if (!rest.empty() && rest[0] == '"') {
      if (!TakeQuoted(rest, field)) return false;
    } else {
      const size_t comma = rest.find(',');
      const absl::string_view text = absl::StripTrailingAsciiWhitespace(rest.substr(0, comma));
      field.assign(text.data(), text.size());
      rest = comma == absl::string_view::npos ? absl::string_view() : rest.substr(comma);
    }
    if (rest.empty()) break;
    rest.remove_prefix(1);
  }
  fields.resize(count);
  return true;
}

}  // namespace bfio
