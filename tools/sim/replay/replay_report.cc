#include "tools/sim/replay/replay_report.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace bfio::sim {
namespace {

nlohmann::ordered_json Microseconds(const Histogram& seconds) {
  return {{"mean", seconds.mean() * 1e6},
          {"p50", seconds.Quantile(0.5) * 1e6},
          {"p99", seconds.Quantile(0.99) * 1e6},
          {"max", seconds.max() * 1e6}};
}

double PerStep(const ReplayCounts& counts, double sum) {
  return counts.steps == 0 ? 0 : sum / static_cast<double>(counts.steps);
}

double IdleShare(const ReplayCounts& counts) {
  return counts.capacity_tokens <= 0 ? 0 : counts.imbalance_tokens / counts.capacity_tokens;
}

std::string Ending(const std::string& ending) {
  static const auto* const kWords = new std::map<std::string, std::string>{
      {"closed", "the router closed the log"},
      {"overflow", "the disk was too slow, so the router stopped logging"},
      {"too_large", "a record was too large, so the router stopped logging"},
      {"no_end",
       "no end marker: the router was killed, still writes, or its disk failed; replayed the whole log"},
      {"truncated",
       "truncated within a record: the router was killed or its disk failed; replayed up to this record"},
      {"damaged", "damaged; replayed up to the damage"},
      {"interrupted", "interrupted; replayed a part of the log"}};
  return kWords->at(ending);
}

std::string Decisions(const ReplayedLog& log, const SessionReplay& replay) {
  const ReplayCounts& c = replay.counts();
  if (!log.what_if.empty()) {
    return absl::StrFormat(
        "%s decides differently in %d of %d decisions on the recorded snapshots;\n"
        "             idle work in the step of each plan: %.0f tokens instead of %.0f\n",
        log.what_if, c.otherwise, c.asked,
        c.asked == 0 ? 0 : c.other_idle_tokens / static_cast<double>(c.asked),
        c.asked == 0 ? 0 : c.recorded_idle_tokens / static_cast<double>(c.asked));
  }
  std::string text = absl::StrFormat("%d of %d decisions identical, %d of %d answers\n", c.identical,
                                     c.decisions, c.answers_identical, c.answers);
  if (c.cut_short > 0) {
    absl::StrAppendFormat(
        &text,
        "             %d decisions that differ were stopped early by --decide_budget_ms; later decisions\n"
        "             may differ because the policy's state differs since\n",
        c.cut_short);
  }
  return text;
}

}  // namespace

nlohmann::ordered_json ReplayJson(const ReplayedLog& log, const SessionReplay& replay) {
  const ReplayCounts& c = replay.counts();
  const record::LogHeader& header = replay.header();
  nlohmann::ordered_json json;
  json["log"] = log.path;
  json["session"] = header.session;
  json["version"] = header.version;
  json["segments"] = log.segments;
  json["earlier_sessions"] = log.earlier_sessions;
  json["bytes"] = log.bytes;
  json["ending"] = log.ending;
  json["policy"] = header.policy.name;
  json["lookahead"] = header.lookahead;
  json["plan_mode"] = header.options.plan_mode == core::PlanMode::kLockstep ? "lockstep" : "pipelined";
  json["records"] = c.records;
  json["decisions"] = c.decisions;
  if (log.what_if.empty()) {
    json["identical"] = c.identical;
    json["cut_short"] = c.cut_short;
  } else {
    json["what_if"] = {{"policy", log.what_if},
                       {"asked", c.asked},
                       {"otherwise", c.otherwise},
                       {"idle_tokens_recorded", c.recorded_idle_tokens},
                       {"idle_tokens_other", c.other_idle_tokens}};
  }
  json["answers"] = c.answers;
  json["answers_identical"] = c.answers_identical;
  if (c.first_difference.empty()) {
    json["first_difference"] = nullptr;
  } else {
    json["first_difference"] = c.first_difference;
  }
  json["ok"] = !replay.Failed();
  json["groups"] = c.groups;
  json["epochs"] = c.epochs;
  json["steps"] = c.steps;
  json["reports"] = c.reports;
  json["requests_accepted"] = c.accepted;
  json["requests_refused"] = c.refused;
  json["requests_requeued"] = c.requeued;
  json["requests_cancelled"] = c.cancelled;
  json["requests_finished"] = c.finished;
  json["placements"] = c.placed;
  json["duration_s"] = c.duration_s;
  json["avg_imbalance_tokens"] = PerStep(c, c.imbalance_tokens);
  json["idle_fraction"] = IdleShare(c);
  json["decide_us_recorded"] = Microseconds(c.recorded_decide_s);
  json["decide_us_replayed"] = Microseconds(c.replayed_decide_s);
  return json;
}

std::string ReplayText(const ReplayedLog& log, const SessionReplay& replay) {
  const ReplayCounts& c = replay.counts();
  const record::LogHeader& header = replay.header();
  const absl::Time began = absl::FromUnixNanos(static_cast<int64_t>(header.session));
  std::string text;
  absl::StrAppendFormat(
      &text, "log          %s, %d of its segments, %.1f MB, router %s, session of %s%s\n", log.path,
      log.segments, static_cast<double>(log.bytes) * 1e-6, header.version,
      absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", began, absl::UTCTimeZone()),
      log.earlier_sessions == 0 ? "" : absl::StrCat(" (", log.earlier_sessions, " earlier)"));
  absl::StrAppendFormat(&text, "end          %s\n", Ending(log.ending));
  absl::StrAppendFormat(&text, "policy       %s, lookahead %s, %s\n", header.policy.name, header.lookahead,
                        header.options.plan_mode == core::PlanMode::kLockstep ? "lockstep" : "pipelined");
  absl::StrAppendFormat(&text, "replay       %s", Decisions(log, replay));
  if (!c.first_difference.empty()) absl::StrAppendFormat(&text, "first        %s\n", c.first_difference);
  absl::StrAppendFormat(
      &text, "session      %.1f s, %d groups, %d epochs, %d steps, %d reports, %.0f log bytes per step\n",
      c.duration_s, c.groups, c.epochs, c.steps, c.reports, PerStep(c, static_cast<double>(log.bytes)));
  absl::StrAppendFormat(
      &text, "requests     %d accepted, %d refused, %d placed, %d finished, %d cancelled, %d placed again\n",
      c.accepted, c.refused, c.placed, c.finished, c.cancelled, c.requeued);
  absl::StrAppendFormat(&text, "imbalance    %.0f tokens per step, idle by load %.2f %%\n",
                        PerStep(c, c.imbalance_tokens), IdleShare(c) * 100);
  for (const auto& [name, seconds] :
       {std::pair<const char*, const Histogram*>{"recorded", &c.recorded_decide_s},
        {"replayed", &c.replayed_decide_s}}) {
    absl::StrAppendFormat(&text, "decision     %s: mean %.1f us, p50 %.1f, p99 %.1f, max %.1f\n", name,
                          seconds->mean() * 1e6, seconds->Quantile(0.5) * 1e6, seconds->Quantile(0.99) * 1e6,
                          seconds->max() * 1e6);
  }
  return text;
}

}  // namespace bfio::sim
