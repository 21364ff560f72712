#include "router/record/codec.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "router/record/archive.h"
#include "router/record/fields.h"

namespace bfio::record {
namespace {

// The first byte of a record; from kFirstEvent on, the event's index in core::SchedulerEvent.
constexpr uint8_t kHeader = 1, kEnd = 2, kFirstEvent = 3;

// By index in core::SchedulerEvent.
constexpr absl::string_view kEventNames[] = {
    "add_group",   "remove_group",    "enqueue",          "requeue",  "cancel", "open_epoch", "close_epoch",
    "accepts_new", "set_worker_time", "set_service_time", "set_cost", "report", "make_plan",  "set_policy"};
static_assert(std::size(kEventNames) == std::variant_size_v<core::SchedulerEvent>);

template <size_t... index>
void Emplace(size_t wanted, core::SchedulerEvent& event, std::index_sequence<index...>) {
  ((index == wanted ? (void)event.emplace<index>() : (void)0), ...);
}

template <class A, class Event, class Outcome, class Times>
void EventFields(A& a, Event& event, Outcome& outcome, Times& times) {
  std::visit([&](auto& what) { Fields(a, what); }, event);
  a.From(kFirstOfOutcome);
  Fields(a, outcome);
  a.From(kFirstOfTimes);
  Fields(a, times);
}

}  // namespace

void Encode(const LogHeader& header, std::string& out) {
  out.push_back(static_cast<char>(kHeader));
  Writer writer(0, false, &out);
  Fields(writer, header);
}

void Encode(LogEnd end, std::string& out) {
  out.push_back(static_cast<char>(kEnd));
  out.push_back(static_cast<char>(end));
}

void Encode(const core::SchedulerEvent& event, const core::Outcome& outcome, const EventTimes& times,
            core::RequestId id_base, bool with_hints, std::string& out) {
  out.push_back(static_cast<char>(kFirstEvent + event.index()));
  Writer writer(id_base, with_hints, &out);
  EventFields(writer, event, outcome, times);
}

std::string OutcomeBytes(const core::Outcome& outcome) {
  std::string bytes;
  Writer writer(0, false, &bytes);
  Fields(writer, outcome);
  return bytes;
}

absl::StatusOr<Record> Decode(absl::string_view bytes, core::RequestId id_base) {
  if (bytes.empty()) return absl::InvalidArgumentError("a record is empty");
  const auto kind = static_cast<uint8_t>(bytes[0]);
  bytes.remove_prefix(1);
  if (kind == kEnd) {
    if (bytes.size() != 1 || bytes[0] < 1 || bytes[0] > static_cast<char>(LogEnd::kTooLarge))
      return absl::InvalidArgumentError("an end has no known reason");
    return static_cast<LogEnd>(bytes[0]);
  }
  Storage storage;
  Reader reader(bytes, id_base, &storage);
  Record record;
  if (kind == kHeader) {
    Fields(reader, record.emplace<LogHeader>());
  } else if (kind >= kFirstEvent && kind - kFirstEvent < std::ssize(kEventNames)) {
    LoggedEvent& logged = record.emplace<LoggedEvent>();
    Emplace(kind - kFirstEvent, logged.event, std::make_index_sequence<std::size(kEventNames)>());
    EventFields(reader, logged.event, logged.outcome, logged.times);
    logged.storage = std::move(storage);
  } else {
    return absl::InvalidArgumentError(absl::StrCat("there is no record of kind ", kind));
  }
  if (reader.ok() && !reader.AtEnd()) reader.Fail("a field is unknown");
  if (!reader.ok()) return reader.status();
  return record;
}

absl::string_view EventName(const core::SchedulerEvent& event) {
  return kEventNames[event.index()];
}

std::string ToJson(const Record& record) {
  JsonWriter json;
  std::string name = "end";
  if (const auto* end = std::get_if<LogEnd>(&record)) {
    const auto reason = static_cast<int>(*end);
    json.Int("reason", reason);
  } else if (const auto* header = std::get_if<LogHeader>(&record)) {
    name = "header";
    Fields(json, *header);
  } else {
    const auto& logged = std::get<LoggedEvent>(record);
    name = std::string(EventName(logged.event));
    EventFields(json, logged.event, logged.outcome, logged.times);
  }
  return absl::StrCat("{\"record\":\"", name, "\"", json.text().empty() ? "" : ",", json.text(), "}");
}

std::string ToJson(const core::Outcome& outcome) {
  JsonWriter json;
  Fields(json, outcome);
  return absl::StrCat("{", json.text(), "}");
}

}  // namespace bfio::record
