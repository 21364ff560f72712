#include "tests/chaos/chaos_run.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "tests/chaos/audit.h"
#include "tests/chaos/chaos_group.h"
#include "tests/chaos/client_load.h"
#include "tests/chaos/memory_watch.h"
#include "tests/chaos/workload.h"

namespace bfio::chaos {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(20);
constexpr absl::Duration kSamplePeriod = absl::Seconds(1);
// Before the first fault and after the last: what a run looks like without.
constexpr absl::Duration kCalm = absl::Seconds(5);
constexpr int kSlots = 24;
constexpr uint32_t kMeanOutput = 16;
constexpr double kStepSeconds = 0.03;

GroupOptions OptionsOf(const RunOptions& run) {
  GroupOptions group;
  group.workers = run.workers;
  group.router_flags = {
      absl::StrCat("--step_timeout=", absl::FormatDuration(run.step_timeout)),
      absl::StrCat("--form_timeout=", absl::FormatDuration(run.form_timeout)),
      // A router that comes back while a worker is gone waits for it no longer than for a step.
      absl::StrCat("--restart_settle=", absl::FormatDuration(run.step_timeout)), "--log_level=debug"};
  if (run.engine == "cpu") {
    group.worker_flags = {"--engine=cpu", absl::StrCat("--model=", run.model), "--slots=8",
                          "--kv_tokens=16384", "--step_tokens=64"};
    return group;
  }
  group.worker_flags = {absl::StrCat("--c=", kStepSeconds), "--tl=0", absl::StrCat("--slots=", kSlots)};
  group.liar.cost = {kStepSeconds, 0, 0};
  group.liar.limits = {kSlots, 1 << 20, 1 << 18};
  return group;
}

std::vector<FaultKind> PossibleKinds(const RunOptions& options, const Means& means) {
  std::vector<FaultKind> kinds;
  for (const FaultKind kind : options.kinds.empty() ? AllFaults() : options.kinds) {
    const auto impossible = means.impossible.find(kind);
    if (impossible == means.impossible.end()) {
      kinds.push_back(kind);
    } else {
      absl::PrintF("skipped  %s: %s\n", std::string(NameOf(kind)), impossible->second);
    }
  }
  return kinds;
}

// Carries the schedule out beside the load.
class Director {
 public:
  // `allowed`: how long streams may stand still after a fault.
  Director(ChaosGroup& group, const std::vector<Fault>& faults, absl::Duration allowed)
      : group_(group), allowed_(allowed), start_(MonotonicNow()) {
    for (const Fault& fault : faults) events_.emplace(fault.at, Event{fault, false});
  }

  void Tick() {
    const absl::Time now = MonotonicNow();
    while (!events_.empty() && start_ + events_.begin()->first <= now) {
      const Event event = events_.begin()->second;
      events_.erase(events_.begin());
      Act(event, now);
    }
    group_.Tick();
    for (std::string& death : group_.Deaths()) other_.push_back(std::move(death));
    if (now >= next_sample_) {
      memory_.Sample(now - start_, group_.router_pid(), group_.worker_pids());
      next_sample_ = now + kSamplePeriod;
    }
  }
  bool done() const { return events_.empty(); }
  absl::Time start() const { return start_; }

  const MemoryWatch& memory() const { return memory_; }
  std::vector<Disturbance>& disturbances() { return disturbances_; }
  std::vector<std::string>& other() { return other_; }
  const std::map<FaultKind, int>& carried_out() const { return carried_out_; }

 private:
  struct Event {
    Fault fault;
    bool end;
  };

  void Act(const Event& event, absl::Time now) {
    if (event.end) {
      group_.End(event.fault);
    } else if (!group_.Begin(event.fault)) {
      absl::PrintF("%8.2f s  left out: %s\n", absl::ToDoubleSeconds(now - start_), Describe(event.fault));
      return;
    } else {
      ++carried_out_[event.fault.kind];
      if (event.fault.length > absl::ZeroDuration())
        events_.emplace(now - start_ + event.fault.length, Event{event.fault, true});
    }
    // After the act: starting a router takes its time.
    disturbances_.push_back({MonotonicNow(), allowed_});
  }

  ChaosGroup& group_;
  const absl::Duration allowed_;
  const absl::Time start_;
  std::multimap<absl::Duration, Event> events_;
  absl::Time next_sample_ = absl::InfinitePast();
  MemoryWatch memory_;
  std::vector<Disturbance> disturbances_;
  std::vector<std::string> other_;
  std::map<FaultKind, int> carried_out_;
};

}  // namespace

int RunChaos(const RunOptions& options) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  Means means = FindMeans(options.workers, options.engine == "sim");
  ScheduleOptions schedule;
  schedule.seed = options.seed;
  schedule.workers = options.workers;
  schedule.first = kCalm;
  schedule.last = options.duration - kCalm;
  schedule.mean_gap = options.mean_gap;
  schedule.step_timeout = options.step_timeout;
  schedule.kinds = PossibleKinds(options, means);
  const std::vector<Fault> faults = DrawSchedule(schedule);
  absl::PrintF("seed %d, %d faults in %s, %d workers, engine %s, %g requests/s\n", options.seed,
               faults.size(), absl::FormatDuration(options.duration), options.workers, options.engine,
               options.rate);
  for (const Fault& fault : faults) absl::PrintF("%s\n", Describe(fault));

  const std::unique_ptr<Workload> workload =
      options.engine == "cpu" ? MakeCpuWorkload(options.seed, options.model, kMeanOutput, 64)
                              : MakeSimWorkload(options.seed, kMeanOutput);
  if (workload == nullptr) {
    std::fprintf(stderr, "no checkpoint in '%s'\n", options.model.c_str());
    ReleaseMeans(means);
    return 2;
  }
  Verdict verdict;
  {
    ChaosGroup group(OptionsOf(options), means);
    if (!group.WaitServing(options.workers, testing::kSlowdown * absl::Seconds(30))) {
      std::fprintf(stderr, "the group did not start\n");
      ReleaseMeans(means);
      return 2;
    }
    LoadOptions load_options;
    load_options.address = group.address();
    load_options.rate = options.rate;
    load_options.seed = options.seed;
    ClientLoad load(load_options, *workload);
    std::atomic<bool> loaded{true};
    // Processes are started by this thread, which outlives them; a child dies with the thread that made it.
    std::thread clients([&] {
      load.Run(options.duration);
      loaded = false;
    });
    const absl::Duration allowed = testing::kSlowdown * (options.step_timeout + options.grace);
    Director director(group, faults, allowed);
    while (loaded || !director.done()) {
      director.Tick();
      absl::SleepFor(kTick);
    }
    clients.join();
    for (std::string& fault : group.StopCleanly(testing::kSlowdown * absl::Seconds(40)))
      director.other().push_back(std::move(fault));
    AuditInput input{load.ledger(),    director.memory(), director.disturbances(),
                     director.start(), allowed,           director.other()};
    verdict = Audit(input);
    absl::PrintF("\n");
    for (const auto& [kind, count] : director.carried_out())
      absl::PrintF("%-44s %14d\n", absl::StrCat("fault ", NameOf(kind)), count);
    if (!options.memory_csv.empty()) std::ofstream(options.memory_csv) << director.memory().Csv();
  }
  ReleaseMeans(means);
  absl::PrintF("%s", verdict.table);
  for (const std::string& violation : verdict.violations) absl::PrintF("VIOLATION  %s\n", violation);
  absl::PrintF("%s\n", verdict.violations.empty() ? "all promises kept" : "promises broken");
  return verdict.violations.empty() ? 0 : 1;
}

}  // namespace bfio::chaos
