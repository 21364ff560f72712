// Fields of log lines: the subjects of a line, for log collectors. --log_format=json writes them beside the
// message, so that collectors need not parse messages to find a request_id. Text lines omit them: their
// messages contain what a reader needs.
//
//     const ScopedLogFields fields{{"request_id", id}, {"epoch", epoch}};
//     spdlog::warn("...");
//
// Names in use: request_id, tenant, trace_id, handle; worker, group, epoch, rank, step. Threads: a scope
// belongs to the thread that made it, and must end there.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace bfio {

// Upper bound of the bytes of a field's text that are written.
inline constexpr size_t kMaxFieldBytes = 256;

struct LogField {
  // `name` is a literal of letters and '_', different from a line's own fields (log_format.h). A field with
  // an empty text is not written.
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

// While it exists, lines of this thread have these fields and those of the enclosing scopes.
class ScopedLogFields {
 public:
  ScopedLogFields(std::initializer_list<LogField> fields) : ScopedLogFields(std::vector<LogField>(fields)) {}
  explicit ScopedLogFields(std::vector<LogField> fields);
  ~ScopedLogFields() { innermost_ = outer_; }
  ScopedLogFields(const ScopedLogFields&) = delete;
  ScopedLogFields& operator=(const ScopedLogFields&) = delete;

  // The current fields of this thread.
  static absl::Span<const LogField> Current();

 private:
  std::vector<LogField> fields_;
  const ScopedLogFields* const outer_;
  static thread_local const ScopedLogFields* innermost_;
};

}  // namespace bfio
