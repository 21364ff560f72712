#include "tests/chaos/schedule.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/rng.h"

namespace bfio::chaos {
namespace {

absl::Duration Between(Rng& rng, absl::Duration low, absl::Duration high) {
  return low + (high - low) * rng.Uniform();
}

// How often a kind is drawn, against the others'.
int Weight(FaultKind kind) {
  switch (kind) {
    case FaultKind::kKillWorker:
      return 4;
    case FaultKind::kPauseLong:
    case FaultKind::kStallLink:
    case FaultKind::kKillRouter:
    case FaultKind::kLyingWorker:
      return 2;
    default:
      return 1;
  }
}

absl::Duration LengthOf(FaultKind kind, absl::Duration step_timeout, Rng& rng) {
  switch (kind) {
    case FaultKind::kKillWorker:
      return Between(rng, absl::Milliseconds(300), absl::Seconds(5));
    case FaultKind::kPauseShort:
      return Between(rng, 0.1 * step_timeout, 0.6 * step_timeout);
    case FaultKind::kPauseLong:
    case FaultKind::kStallLink:
    case FaultKind::kPartitionPeers:
    case FaultKind::kIsolateWorker:
      return Between(rng, 1.5 * step_timeout, 4 * step_timeout);
    case FaultKind::kKillRouter:
      return Between(rng, absl::Milliseconds(100), absl::Milliseconds(1000));
    case FaultKind::kCutLink:
    case FaultKind::kHalfCloseLink:
    case FaultKind::kJumpClock:
      return absl::ZeroDuration();
    default:
      return Between(rng, absl::Seconds(1), absl::Seconds(4));
  }
}

}  // namespace

absl::string_view NameOf(FaultKind kind) {
  switch (kind) {
    case FaultKind::kKillWorker:
      return "kill-worker";
    case FaultKind::kPauseShort:
      return "pause-short";
    case FaultKind::kPauseLong:
      return "pause-long";
    case FaultKind::kSlowWorker:
      return "slow-worker";
    case FaultKind::kCutLink:
      return "cut-link";
    case FaultKind::kStallLink:
      return "stall-link";
    case FaultKind::kHalfCloseLink:
      return "half-close-link";
    case FaultKind::kDelayLink:
      return "delay-link";
    case FaultKind::kPartitionPeers:
      return "partition-peers";
    case FaultKind::kIsolateWorker:
      return "isolate-worker";
    case FaultKind::kKillRouter:
      return "kill-router";
    case FaultKind::kFullDisk:
      return "full-disk";
    case FaultKind::kJumpClock:
      return "jump-clock";
    case FaultKind::kLyingWorker:
      return "lying-worker";
    case FaultKind::kDuplicateReport:
      return "duplicate-report";
  }
  return "";
}

const std::vector<FaultKind>& AllFaults() {
  static const auto* const all = [] {
    auto* kinds = new std::vector<FaultKind>();
    for (int kind = 0; kind <= static_cast<int>(FaultKind::kDuplicateReport); ++kind)
      kinds->push_back(static_cast<FaultKind>(kind));
    return kinds;
  }();
  return *all;
}

ClockJump JumpOf(const Fault& fault) {
  Rng rng(static_cast<uint64_t>(fault.detail));
  ClockJump jump;
  jump.router = rng.Below(3) == 0;
  jump.by =
      absl::Trunc(absl::Seconds(std::exp(rng.Uniform() * std::log(absl::ToDoubleSeconds(absl::Hours(24))))),
                  absl::Milliseconds(1));
  if (rng.Below(2) == 0) jump.by = -jump.by;
  return jump;
}

std::vector<Fault> DrawSchedule(const ScheduleOptions& options) {
  std::vector<FaultKind> urn;
  for (const FaultKind kind : options.kinds) urn.insert(urn.end(), Weight(kind), kind);
  std::vector<Fault> faults;
  if (urn.empty()) return faults;
  Rng rng(options.seed);
  absl::Duration at = options.first;
  while (at < options.last) {
    Fault fault;
    fault.at = at;
    fault.kind = urn[rng.Below(urn.size())];
    fault.worker = static_cast<int>(rng.Below(static_cast<uint64_t>(options.workers)));
    fault.peer =
        (fault.worker + 1 +
         static_cast<int>(rng.Below(static_cast<uint64_t>(options.workers > 1 ? options.workers - 1 : 1)))) %
        options.workers;
    fault.length = LengthOf(fault.kind, options.step_timeout, rng);
    fault.detail = static_cast<int64_t>(rng.Below(1 << 20));
    faults.push_back(fault);
    at += options.mean_gap * rng.Exponential();
  }
  return faults;
}

std::string Describe(const Fault& fault) {
  std::string text =
      absl::StrFormat("%8.2f s  %-16s", absl::ToDoubleSeconds(fault.at), std::string(NameOf(fault.kind)));
  switch (fault.kind) {
    case FaultKind::kKillRouter:
    case FaultKind::kFullDisk:
      break;
    case FaultKind::kJumpClock: {
      const ClockJump jump = JumpOf(fault);
      absl::StrAppend(&text, jump.router ? " router" : absl::StrCat(" worker ", fault.worker), " by ",
                      absl::FormatDuration(jump.by));
      break;
    }
    case FaultKind::kLyingWorker:
    case FaultKind::kDuplicateReport:
      absl::StrAppend(&text, " way ", fault.detail);
      break;
    case FaultKind::kPartitionPeers:
      absl::StrAppend(&text, " worker ", fault.worker, " and rank 0 (if that is it, worker ", fault.peer,
                      ")");
      break;
    default:
      absl::StrAppend(&text, " worker ", fault.worker);
  }
  if (fault.length > absl::ZeroDuration())
    absl::StrAppendFormat(&text, ", %.2f s", absl::ToDoubleSeconds(fault.length));
  return text;
}

}  // namespace bfio::chaos
