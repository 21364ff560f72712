// Records of the decision log, as structs and as bytes. A log holds the events of a core::Cluster with their
// outcomes, as the core has them; fields.h says what of each struct. Decoding rejects any value that the core
// cannot have had, whatever the file contains. Pure. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/core/policy/policy.h"
#include "router/core/scheduler/scheduler_event.h"
#include "router/core/scheduler/scheduler_options.h"

namespace bfio::record {

// The first record of every segment.
struct LogHeader {
  // Start of the session in nanoseconds of Unix time, which identifies it.
  uint64_t session = 0;
  // 0 for the session's first segment, then ascending.
  uint32_t segment = 0;
  // The router's version.
  std::string version;
  // Start of the segment in microseconds of Unix time.
  int64_t started_unix_us = 0;
  // A number near the session's ids, which are written as differences.
  core::RequestId id_base = 0;
  // What the cluster was made with; the policy is that at the start of the segment.
  core::SchedulerOptions options;
  core::PolicySetting policy;
  std::string lookahead;
};

// The last record of a log that did not just break off: why it ends.
enum class LogEnd : uint8_t {
  // The router ended.
  kClosed = 1,
  // The disk was slower than the decisions.
  kOverflow = 2,
  // An event was larger than a record may be.
  kTooLarge = 3,
};

struct EventTimes {
  // Microseconds since the session's start.
  int64_t at_us = 0;
  // Duration of a MakePlan.
  int64_t decide_ns = 0;
};

struct LoggedEvent {
  // Its spans refer to `storage`.
  core::SchedulerEvent event;
  // The status has no message.
  core::Outcome outcome;
  // 0 except for MakePlan.
  EventTimes times;
  std::vector<std::shared_ptr<const void>> storage;
};

using Record = std::variant<LogHeader, LogEnd, LoggedEvent>;

// Append the record's bytes to `out`. Hints of reports are omitted unless `with_hints`.
void Encode(const LogHeader& header, std::string& out);
void Encode(LogEnd end, std::string& out);
void Encode(const core::SchedulerEvent& event, const core::Outcome& outcome, const EventTimes& times,
            core::RequestId id_base, bool with_hints, std::string& out);
// Equal outcomes have equal bytes.
std::string OutcomeBytes(const core::Outcome& outcome);

// INVALID_ARGUMENT naming field and value.
absl::StatusOr<Record> Decode(absl::string_view bytes, core::RequestId id_base);

// For example "report", "make_plan".
absl::string_view EventName(const core::SchedulerEvent& event);
// The record as one JSON object; zeros, empty lists and absent values are omitted.
std::string ToJson(const Record& record);
std::string ToJson(const core::Outcome& outcome);

}  // namespace bfio::record
