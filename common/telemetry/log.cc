#include "common/telemetry/log.h"

#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/spdlog.h"
#include "common/telemetry/log_format.h"
#include "spdlog/formatter.h"
#include "spdlog/sinks/stdout_sinks.h"

namespace bfio {
namespace {

// spdlog has patterns for text but no escaping, so both formats are made here: one event is one line,
// whatever the message holds.
class LineFormatter : public spdlog::formatter {
 public:
  LineFormatter(std::string program, bool json) : program_(std::move(program)), json_(json) {}

  void format(const spdlog::details::log_msg& msg, spdlog::memory_buf_t& out) override {
    const spdlog::string_view_t level = spdlog::level::to_string_view(msg.level);
    const LogLine line{.time = absl::FromChrono(msg.time),
                       .level = absl::string_view(level.data(), level.size()),
                       .program = program_,
                       .thread = msg.thread_id,
                       .message = absl::string_view(msg.payload.data(), msg.payload.size())};
    const std::string text = json_ ? JsonLine(line) : TextLine(line);
    out.append(text.data(), text.data() + text.size());
  }

  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<LineFormatter>(program_, json_);
  }

 private:
  const std::string program_;
  const bool json_;
};

// Appends `text`, so that it stays on one line and, with `quotes`, inside a JSON string. Bytes above 0x7f
// pass: log texts are UTF-8.
void AppendEscaped(absl::string_view text, bool quotes, std::string& out) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (quotes && (c == '"' || c == '\\')) {
      out.push_back('\\');
      out.push_back(c);
    } else if (c == '\n') {
      out.append("\\n");
    } else if (c == '\t') {
      out.append(quotes ? "\\t" : "\t");
    } else if (byte < 0x20 || byte == 0x7f) {
      // Two calls: a format that is chosen at run time is no constant for clang.
      if (quotes) absl::StrAppendFormat(&out, "\\u%04x", byte);
      if (!quotes) absl::StrAppendFormat(&out, "\\x%02x", byte);
    } else {
      out.push_back(c);
    }
  }
}

std::string Timestamp(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", time, absl::UTCTimeZone());
}

}  // namespace

std::string TextLine(const LogLine& line) {
  std::string out = absl::StrCat(Timestamp(line.time), " ", line.level, " ", line.program, ": ");
  AppendEscaped(line.message, false, out);
  out.push_back('\n');
  return out;
}

std::string JsonLine(const LogLine& line) {
  std::string out =
      absl::StrCat("{\"time\":\"", Timestamp(line.time), "\",\"level\":\"", line.level, "\",\"program\":\"");
  AppendEscaped(line.program, true, out);
  absl::StrAppend(&out, "\",\"thread\":", line.thread, ",\"message\":\"");
  AppendEscaped(line.message, true, out);
  out.append("\"}\n");
  return out;
}

absl::Status InitLogging(const std::string& program, const std::string& level, const std::string& format) {
  static const auto* const levels =
      new std::map<std::string, spdlog::level::level_enum>{{"trace", spdlog::level::trace},
                                                           {"debug", spdlog::level::debug},
                                                           {"info", spdlog::level::info},
                                                           {"warning", spdlog::level::warn},
                                                           {"error", spdlog::level::err}};
  const auto found = levels->find(level);
  if (found == levels->end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--log_level=", level, " is not one of trace, debug, info, warning, error"));
  }
  if (format != "text" && format != "json") {
    return absl::InvalidArgumentError(absl::StrCat("--log_format=", format, " is not text or json"));
  }
  auto logger = std::make_shared<spdlog::logger>(program, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_formatter(std::make_unique<LineFormatter>(program, format == "json"));
  logger->set_level(found->second);
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

}  // namespace bfio
