// Fields of log lines: the subjects of a line, for log collectors.
//
// Purpose: --log_format=json writes them beside the message, so that collectors need not parse messages to
// find a request_id. Text lines leave them out: their messages contain what a reader needs.
//
//     const ScopedLogFields fields{{"request_id", id}, {"epoch", epoch}};
//     spdlog::warn("...");
//
// Names in use: request_id, tenant, trace_id, handle; worker, group, epoch, rank, step. Threads: a scope is
// of the thread that made it, and ends there.
#ifndef BFIO_COMMON_TELEMETRY_LOG_FIELDS_H_
#define BFIO_COMMON_TELEMETRY_LOG_FIELDS_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace bfio {

// Bytes of a field's text that are written.
inline constexpr size_t kMaxFieldBytes = 256;

struct LogField {
  // `name` is a literal: letters and '_', none of a line's own (log_format.h). A field without text is not
  // written.
  LogField(absl::string_view name, absl::string_view text)
      : name(name), text(text.substr(0, kMaxFieldBytes)) {}
  LogField(absl::string_view name, const std::string& text) : LogField(name, absl::string_view(text)) {}
  LogField(absl::string_view name, const char* text) : LogField(name, absl::string_view(text)) {}
  LogField(absl::string_view name, uint64_t number) : name(name), text(absl::StrCat(number)), number(true) {}
  LogField(absl::string_view name, int64_t number) : name(name), text(absl::StrCat(number)), number(true) {}
  LogField(absl::string_view name, uint32_t number) : LogField(name, uint64_t{number}) {}
  LogField(absl::string_view name, int32_t number) : LogField(name, int64_t{number}) {}

  absl::string_view name;
  std::string text;
  bool number = false;
};

// Lines that this thread logs while it lives have these fields, and those of the scopes around it.
class ScopedLogFields {
 public:
  ScopedLogFields(std::initializer_list<LogField> fields) : ScopedLogFields(std::vector<LogField>(fields)) {}
  explicit ScopedLogFields(std::vector<LogField> fields);
  ~ScopedLogFields() { innermost_ = outer_; }
  ScopedLogFields(const ScopedLogFields&) = delete;
  ScopedLogFields& operator=(const ScopedLogFields&) = delete;

  // Of this thread, now.
  static absl::Span<const LogField> Current();

 private:
  std::vector<LogField> fields_;
  const ScopedLogFields* const outer_;
  static thread_local const ScopedLogFields* innermost_;
};

}  // namespace bfio

#endif  // BFIO_COMMON_TELEMETRY_LOG_FIELDS_H_
