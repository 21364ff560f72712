#include <iostream>

#include "absl/strings/str_cat.h"
#include "common/base/annotated.h"
#include "common/base/clock.h"
#include "common/base/shutdown.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "router/record/log_reader.h"
#include "tools/sim/commands.h"
#include "tools/sim/replay/session_replay.h"
#include "tools/sim/run/simulation.h"

namespace bfio::sim {
namespace {

// Interval between checks for a signal, in records.
constexpr int64_t kLook = 1024;

double ClockSeconds() {
  return absl::ToDoubleSeconds(MonotonicNow() - absl::UnixEpoch());
}

std::string EndingName(record::LogReader::Ending ending) {
  using Ending = record::LogReader::Ending;
  static constexpr std::pair<Ending, const char*> kNames[] = {{Ending::kClosed, "closed"},
                                                              {Ending::kOverflow, "overflow"},
                                                              {Ending::kTooLarge, "too_large"},
                                                              {Ending::kNoEnd, "no_end"},
                                                              {Ending::kTruncated, "truncated"}};
  for (const auto& [of, name] : kNames)
    if (of == ending) return name;
  return "interrupted";
}

// Passes records on until the log ends, cannot be read, or a signal arrives.
template <class Take>
absl::Status TakeAll(record::LogReader& reader, Take take) {
  record::Record record;
  for (int64_t n = 0; n % kLook != 0 || !ShutdownSignal::Requested(); ++n) {
    BFIO_ASSIGN_OR_RETURN(const bool more, reader.Next(record));
    if (!more) return absl::OkStatus();
    BFIO_RETURN_IF_ERROR(Annotated(reader.Where(), take(record)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunReplayCommand(const ReadOptions& read) {
  std::string path, policy;
  SimOptions options;
  bool json = false, print = false;
  OptionTable table;
  table.Add("log", &path, "path of a router's --decision_log, or of one of its files");
  table.Add("what_if", &policy,
            "policy that plans each recorded decision for comparison; its plans are not applied. The flags "
            "--objective, --horizon and so on configure it");
  table.Add("print", &print, "print the log's records as JSON, one per line, instead of replaying it");
  AddPolicySettings(table, options);
  AddJson(table, json);
  read(table);
  if (path.empty()) return absl::InvalidArgumentError("replay needs --log=PATH of a decision log");
  std::optional<core::PolicySetting> what_if;
  if (!policy.empty()) {
    options.policy = policy;
    what_if = PolicyOf(options);
    BFIO_RETURN_IF_ERROR(core::MakePolicy(policy, what_if->options).status());
  }
  BFIO_ASSIGN_OR_RETURN(record::LogReader reader, record::LogReader::Open(path));
  if (print) {
    return TakeAll(reader, [](const record::Record& record) {
      std::cout << record::ToJson(record) << '\n';
      return std::cout ? absl::OkStatus() : absl::UnavailableError("cannot write to standard output");
    });
  }
  if (reader.header().segment > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " begins with segment ", reader.header().segment,
        " of its session, and only a log from its start can be replayed: the router's decision_log_mb "
        "bounds how much it keeps; --print shows what is left"));
  }
  SessionReplay replay(what_if, ClockSeconds);
  const absl::Status taken =
      TakeAll(reader, [&](const record::Record& record) { return replay.Take(record); });
  const ReplayedLog log = {.path = path,
                           .segments = reader.segments(),
                           .earlier_sessions = reader.earlier_sessions(),
                           .bytes = reader.bytes(),
                           .ending = taken.ok() ? EndingName(reader.ending()) : "damaged",
                           .what_if = policy};
  PrintResult(ReplayJson(log, replay), json);
  if (!taken.ok()) return taken;
  if (replay.Failed()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the replayed decisions differ from the recorded ones: ", replay.counts().first_difference));
  }
  return absl::OkStatus();
}

}  // namespace bfio::sim
