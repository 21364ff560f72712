#include "common/telemetry/log.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/spdlog.h"
#include "common/telemetry/log_format.h"
#include "common/telemetry/log_queue.h"
#include "spdlog/formatter.h"
#include "spdlog/sinks/sink.h"

namespace bfio {
namespace {

// Capacity for lines that wait to be written to standard error: about ten thousand of the usual length.
constexpr size_t kQueueBytes = 1 << 20;
// At exit, how long the last lines, which contain the reason, may take to be written.
constexpr absl::Duration kLastLines = absl::Seconds(1);

// The queue of the latest InitLogging. Never destroyed: other threads may log while the process ends.
std::atomic<LogQueue*> g_queue = nullptr;

// spdlog has patterns for text but does not escape, so both formats are implemented here: one event is one
// line, whatever the message contains.
class LineFormatter : public spdlog::formatter {
 public:
  LineFormatter(std::string program, bool json) : program_(std::move(program)), json_(json) {}

  void format(const spdlog::details::log_msg& msg, spdlog::memory_buf_t& out) override {
    const std::string text = Text(msg, ScopedLogFields::Current());
    out.append(text.data(), text.data() + text.size());
  }

  std::string Text(const spdlog::details::log_msg& msg, absl::Span<const LogField> fields) const {
    const spdlog::string_view_t level = spdlog::level::to_string_view(msg.level);
    const LogLine line{.time = absl::FromChrono(msg.time),
                       .level = absl::string_view(level.data(), level.size()),
                       .program = program_,
                       .thread = msg.thread_id,
                       .message = absl::string_view(msg.payload.data(), msg.payload.size()),
                       .fields = fields};
    return json_ ? JsonLine(line) : TextLine(line);
  }

  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<LineFormatter>(program_, json_);
  }

 private:
  const std::string program_;
  const bool json_;
};

// Passes lines of any thread to the queue, whose thread writes them.
class QueueSink final : public spdlog::sinks::sink {
 public:
  QueueSink(LogQueue& queue, const LineFormatter& formatter) : queue_(queue), formatter_(formatter) {}

  void log(const spdlog::details::log_msg& msg) override {
    queue_.Add(formatter_.Text(msg, ScopedLogFields::Current()), msg.level == spdlog::level::critical);
  }
  void flush() override { queue_.Flush(kLastLines); }
  // The format is fixed, because tests and log parsers rely on it.
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}

 private:
  LogQueue& queue_;
  const LineFormatter formatter_;
};

// Appends `text`, escaped to stay on one line and, with `quotes`, within a JSON string. Bytes above 0x7f are
// kept: log texts are UTF-8.
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
      // Two calls, because clang requires a constant format string.
      if (quotes) absl::StrAppendFormat(&out, "\\u%04x", byte);
      if (!quotes) absl::StrAppendFormat(&out, "\\x%02x", byte);
    } else {
      out.push_back(c);
    }
  }
}

// Appends the message in the form for a line.
void AppendMessage(absl::string_view message, bool quotes, std::string& out) {
  size_t kept = std::min(message.size(), kMaxMessageBytes);
  // Does not cut a UTF-8 character.
  while (kept < message.size() && kept > 0 && (static_cast<unsigned char>(message[kept]) & 0xc0) == 0x80)
    --kept;
  AppendEscaped(message.substr(0, kept), quotes, out);
  if (kept < message.size()) absl::StrAppend(&out, "... (", message.size() - kept, " bytes more)");
}

std::string Timestamp(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", time, absl::UTCTimeZone());
}

}  // namespace

std::string TextLine(const LogLine& line) {
  std::string out = absl::StrCat(Timestamp(line.time), " ", line.level, " ", line.program, ": ");
  AppendMessage(line.message, false, out);
  out.push_back('\n');
  return out;
}

std::string JsonLine(const LogLine& line) {
  std::string out =
      absl::StrCat("{\"time\":\"", Timestamp(line.time), "\",\"level\":\"", line.level, "\",\"program\":\"");
  AppendEscaped(line.program, true, out);
  absl::StrAppend(&out, "\",\"thread\":", line.thread, ",\"message\":\"");
  AppendMessage(line.message, true, out);
  out.push_back('"');
  for (const LogField& field : line.fields) {
    if (field.text.empty()) continue;
    absl::StrAppend(&out, ",\"", field.name, "\":");
    if (!field.number) out.push_back('"');
    AppendEscaped(field.text, !field.number, out);
    if (!field.number) out.push_back('"');
  }
  out.append("}\n");
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
  const LineFormatter formatter(program, format == "json");
  auto* const queue = new LogQueue(STDERR_FILENO, kQueueBytes, [formatter](uint64_t lines) {
    const std::string text =
        absl::StrCat(lines, " log lines were dropped: standard error did not take them in time");
    return formatter.Text(spdlog::details::log_msg("", spdlog::level::warn, text), {});
  });
  if (g_queue.exchange(queue) == nullptr) std::atexit(FlushLog);
  auto logger = std::make_shared<spdlog::logger>(program, std::make_shared<QueueSink>(*queue, formatter));
  logger->set_level(found->second);
  // Lines with the reason for which a program ends are flushed; other lines do not wait for standard error.
  logger->flush_on(spdlog::level::critical);
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

void FlushLog() {
  if (LogQueue* const queue = g_queue.load(); queue != nullptr) queue->Flush(kLastLines);
}

uint64_t DroppedLogLines() {
  const LogQueue* const queue = g_queue.load();
  return queue == nullptr ? 0 : queue->dropped();
}

}  // namespace bfio
