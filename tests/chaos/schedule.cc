#include "tests/chaos/schedule.h"

#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/rng.h"

namespace bfio::chaos {
namespace {

// Unit of a fault's duration.
enum class Unit { kSeconds, kStepTimeouts };

struct KindRow {
  const char* name;
  // Relative frequency of the kind.
  int weight;
  // Range of its duration.
  double low, high;
  Unit unit = Unit::kSeconds;
  bool harmless = false;
  // Upper bound of the router's growth; 0: none.
  int64_t memory_kib = 0;
};

// By FaultKind.
constexpr KindRow kKinds[] = {
    {"kill-worker", 4, 0.3, 5},
    {"pause-short", 1, 0.1, 0.6, Unit::kStepTimeouts},
    {"pause-long", 2, 1.5, 4, Unit::kStepTimeouts},
    {"slow-worker", 1, 1, 4},
    {"cut-link", 1, 0, 0},
    {"stall-link", 2, 1.5, 4, Unit::kStepTimeouts},
    {"half-close-link", 1, 0, 0},
    {"delay-link", 1, 1, 4},
    {"partition-peers", 1, 1.5, 4, Unit::kStepTimeouts},
    {"isolate-worker", 1, 1.5, 4, Unit::kStepTimeouts},
    {"kill-router", 2, 0.1, 1},
    {"full-disk", 1, 1, 4},
    {"jump-clock", 1, 0, 0},
    {"blocked-log", 2, 1, 6, Unit::kSeconds, true},
    // Longer than a lease.
    {"slow-etcd", 2, 5, 15, Unit::kSeconds, true},
    {"poisoned-request", 2, 1, 1, Unit::kSeconds, true},
    {"wrong-model", 2, 2, 8, Unit::kSeconds, true},
    {"barrier-intruder", 2, 2, 8, Unit::kSeconds, true},
    // docs/guides/security.md states the bound of memory.
    {"greedy-peer", 2, 2, 8, Unit::kSeconds, true, 256 << 10},
};

static_assert(std::size(kKinds) == static_cast<size_t>(FaultKind::kGreedyPeer) + 1);

const KindRow& RowOf(FaultKind kind) {
  return kKinds[static_cast<size_t>(kind)];
}

}  // namespace

absl::string_view NameOf(FaultKind kind) {
  return RowOf(kind).name;
}

bool IsHarmless(FaultKind kind) {
  return RowOf(kind).harmless;
}

std::optional<int64_t> MemoryBoundKib(FaultKind kind) {
  const int64_t bound = RowOf(kind).memory_kib;
  return bound > 0 ? std::optional(bound) : std::nullopt;
}

const std::vector<FaultKind>& AllFaults() {
  static const auto* const all = [] {
    auto* kinds = new std::vector<FaultKind>();
    for (size_t kind = 0; kind < std::size(kKinds); ++kind) kinds->push_back(static_cast<FaultKind>(kind));
    return kinds;
  }();
  return *all;
}

bool IsRoutersLog(const Fault& fault) {
  return fault.detail % 2 == 0;
}

ClockJump JumpOf(const Fault& fault) {
  Rng rng(static_cast<uint64_t>(fault.detail));
  ClockJump jump = {.router = rng.Below(3) == 0};
  jump.by =
      absl::Trunc(absl::Seconds(std::exp(rng.Uniform() * std::log(absl::ToDoubleSeconds(absl::Hours(24))))),
                  absl::Milliseconds(1));
  if (rng.Below(2) == 0) jump.by = -jump.by;
  return jump;
}

std::vector<Fault> DrawSchedule(const ScheduleOptions& options) {
  std::vector<FaultKind> urn;
  for (const FaultKind kind : options.kinds)
    urn.insert(urn.end(), static_cast<size_t>(RowOf(kind).weight), kind);
  std::vector<Fault> faults;
  if (urn.empty()) return faults;
  Rng rng(options.seed);
  absl::Duration at = options.first;
  while (at < options.last) {
    Fault fault = {.at = at,
                   .kind = urn[rng.Below(urn.size())],
                   .worker = static_cast<int>(rng.Below(static_cast<uint64_t>(options.workers)))};
    fault.peer =
        (fault.worker + 1 +
         static_cast<int>(rng.Below(static_cast<uint64_t>(options.workers > 1 ? options.workers - 1 : 1)))) %
        options.workers;
    const KindRow& row = RowOf(fault.kind);
    fault.length = (row.unit == Unit::kSeconds ? absl::Seconds(1) : options.step_timeout) *
                   (row.low + (row.high - row.low) * rng.Uniform());
    fault.detail = static_cast<int64_t>(rng.Below(1 << 20));
    faults.push_back(fault);
    at += options.mean_gap * rng.Exponential();
  }
  return faults;
}

namespace {

// Description of the fault's target; empty: all.
std::string TargetOf(const Fault& fault) {
  const std::string worker = absl::StrCat(" worker ", fault.worker);
  switch (fault.kind) {
    case FaultKind::kKillRouter:
    case FaultKind::kFullDisk:
    case FaultKind::kSlowEtcd:
    case FaultKind::kPoisonedRequest:
    case FaultKind::kWrongModel:
    case FaultKind::kBarrierIntruder:
    case FaultKind::kGreedyPeer: return "";
    case FaultKind::kJumpClock: {
      const ClockJump jump = JumpOf(fault);
      return absl::StrCat(jump.router ? " router" : worker, " by ", absl::FormatDuration(jump.by));
    }
    case FaultKind::kBlockedLog: return IsRoutersLog(fault) ? " router" : worker;
    case FaultKind::kPartitionPeers:
      return absl::StrCat(worker, " and rank 0 (if that is it, worker ", fault.peer, ")");
    default: return worker;
  }
}

}  // namespace

std::string Describe(const Fault& fault) {
  std::string text = absl::StrFormat("%8.2f s  %-16s%s", absl::ToDoubleSeconds(fault.at),
                                     std::string(NameOf(fault.kind)), TargetOf(fault));
  if (fault.length > absl::ZeroDuration())
    absl::StrAppendFormat(&text, ", %.2f s", absl::ToDoubleSeconds(fault.length));
  return text;
}

}  // namespace bfio::chaos
