#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/net/connection_listener.h"
#include "tests/chaos/audit.h"
#include "tests/chaos/chaos_group.h"
#include "tests/chaos/client_load.h"
#include "tests/chaos/memory_watch.h"
#include "tests/chaos/runs.h"
#include "tests/chaos/workload.h"

namespace bfio::chaos {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(20);
constexpr absl::Duration kSamplePeriod = absl::Seconds(1);
// Time without faults before the first and after the last fault.
constexpr absl::Duration kCalm = absl::Seconds(5);
// How long a connection waits while there are many without an authenticated call.
constexpr absl::Duration kCrowdedPatience = ConnectionListener::Limits().crowded_patience;
constexpr int kSlots = 24;
constexpr uint32_t kMeanOutput = 16;
constexpr double kStepSeconds = 0.03;

// Writes the file of --resume_key_file. Without it, a stream that resumes at a new router waits like a new
// request.
std::string WriteResumeKey() {
  const std::string path = testing::TestDirectory() + "/resume_keys";
  std::ofstream(path) << std::string(32, 'k') << "\n";
  return path;
}

GroupOptions OptionsOf(const RunOptions& run) {
  GroupOptions group = {.workers = run.workers};
  group.router_flags = {
      absl::StrCat("--step_timeout=", absl::FormatDuration(run.step_timeout)),
      // A router that restarts while a worker is gone waits for it no longer than for a step.
      absl::StrCat("--restart_settle=", absl::FormatDuration(run.step_timeout)), "--log_level=debug",
      absl::StrCat("--client_tokens=", WriteTokens()), absl::StrCat("--resume_key_file=", WriteResumeKey())};
  if (run.engine == "cpu") {
    group.worker_flags = {"--engine=cpu", absl::StrCat("--model=", run.model), "--slots=8",
                          "--kv_tokens=16384", "--token_budget=64"};
    group.other_model_flags = {"--model=tests/golden/llama"};
    if (run.pools) group.prefill_servers = std::max(1, run.workers / 3);
    return group;
  }
  // Logs a line for each request, so that a blocked log has an effect.
  group.worker_flags = {absl::StrCat("--c=", kStepSeconds), "--tl=0", absl::StrCat("--slots=", kSlots),
                        "--log_level=debug"};
  // Its tokens differ even where requests ignore end-of-sequence tokens.
  group.other_model_flags = {"--sim=eos_probability=0.25"};
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

// Carries out the schedule while the load runs.
class Director {
 public:
  // `allowed`: how long streams may pause after a fault.
  Director(ChaosGroup& group, ClientLoad& load, const std::vector<Fault>& faults, absl::Duration allowed)
      : group_(group),
        load_(load),
        allowed_(allowed),
        start_(MonotonicNow()),
        watch_({group.workers(), allowed, testing::kSlowdown, start_}) {
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
      Observe();
      next_sample_ = now + kSamplePeriod;
    }
  }
  bool done() const { return events_.empty(); }
  absl::Time start() const { return start_; }

  const MemoryWatch& memory() const { return memory_; }
  std::vector<Disturbance>& disturbances() { return disturbances_; }
  std::vector<std::string>& other() { return other_; }
  const std::map<FaultKind, int>& carried_out() const { return carried_out_; }
  const HarmlessWatch& watch() const { return watch_; }

 private:
  struct Event {
    Fault fault;
    bool end;
  };

  void Observe() { watch_.Observe(group_.Observe(other_), MonotonicNow()); }

  void Act(const Event& event, absl::Time now) {
    Observe();
    const FaultKind kind = event.fault.kind;
    if (event.end) {
      group_.End(event.fault);
      watch_.End(kind, MonotonicNow());
    } else if (!Begin(event.fault)) {
      absl::PrintF("%8.2f s  left out: %s\n", absl::ToDoubleSeconds(now - start_), Describe(event.fault));
      return;
    } else {
      ++carried_out_[kind];
      watch_.Begin(kind, MonotonicNow());
      if (event.fault.length > absl::ZeroDuration()) {
        events_.emplace(now - start_ + event.fault.length, Event{event.fault, true});
      } else {
        watch_.End(kind, MonotonicNow());
      }
    }
    Disturb(kind);
  }

  bool Begin(const Fault& fault) {
    if (fault.kind != FaultKind::kPoisonedRequest) return group_.Begin(fault);
    load_.SendPoisoned(1 + static_cast<int>(fault.detail % 8));
    return true;
  }

  // Called after the fault has been carried out, because starting a router takes time. A harmless fault must
  // have no effect, except that a connection attempt may have to wait beside a greedy peer.
  void Disturb(FaultKind kind) {
    const absl::Time now = MonotonicNow();
    const bool flooded = group_.IsUnderWay(FaultKind::kGreedyPeer);
    const bool connecting = flooded && !disturbances_.empty() && disturbances_.back().at + allowed_ > now;
    if (IsHarmless(kind) && !connecting) return;
    disturbances_.push_back({now, allowed_ + (flooded ? kCrowdedPatience : absl::ZeroDuration())});
  }

  ChaosGroup& group_;
  ClientLoad& load_;
  const absl::Duration allowed_;
  const absl::Time start_;
  HarmlessWatch watch_;
  std::multimap<absl::Duration, Event> events_;
  absl::Time next_sample_ = absl::InfinitePast();
  MemoryWatch memory_;
  std::vector<Disturbance> disturbances_;
  std::vector<std::string> other_;
  std::map<FaultKind, int> carried_out_;
};

void PrintFaults(const Director& director, const ChaosGroup& group) {
  const auto row = [](const std::string& what, int64_t count) { absl::PrintF("%-44s %14d\n", what, count); };
  for (const auto& [kind, count] : director.carried_out()) row(absl::StrCat("fault ", NameOf(kind)), count);
  for (const auto& [kind, count] : director.watch().watched())
    row(absl::StrCat("  no harmful one beside ", NameOf(kind)), count);
  row("prompts computed here and decoded there", group.handed_over());
}

}  // namespace

int RunChaos(const RunOptions& options) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  Means means = FindMeans(options.workers, options.engine == "sim");
  if (options.pools) {
    // Servers have no barrier, and attacks are on workers.
    means.network.reset();
    for (const FaultKind kind : AllFaults()) {
      if (IsHarmless(kind)) means.impossible[kind] = "it needs workers";
    }
    for (const FaultKind kind : {FaultKind::kPartitionPeers, FaultKind::kIsolateWorker})
      means.impossible[kind] = "servers have no barrier between them";
  }
  ScheduleOptions schedule = {.seed = options.seed,
                              .workers = options.workers,
                              .first = kCalm,
                              .last = options.duration - kCalm,
                              .mean_gap = options.mean_gap,
                              .step_timeout = options.step_timeout,
                              .kinds = PossibleKinds(options, means)};
  const std::vector<Fault> faults = DrawSchedule(schedule);
  absl::PrintF("seed %d, %d faults in %s, %d workers, engine %s, %g requests/s\n", options.seed,
               faults.size(), absl::FormatDuration(options.duration), options.workers, options.engine,
               options.rate);
  for (const Fault& fault : faults) absl::PrintF("%s\n", Describe(fault));

  Workload workload(options.seed, kMeanOutput);
  if (options.engine == "cpu") {
    if (const absl::Status model = workload.UseModel(options.model, 64, options.pools); !model.ok()) {
      std::fprintf(stderr, "%s\n", std::string(model.message()).c_str());
      ReleaseMeans(means);
      return 2;
    }
  }
  Verdict verdict;
  {
    ChaosGroup group(OptionsOf(options), means);
    if (!group.WaitServing(options.workers, testing::kSlowdown * absl::Seconds(30))) {
      std::fprintf(stderr, "the group did not start\n");
      ReleaseMeans(means);
      return 2;
    }
    LoadOptions load_options = {.address = group.address(), .rate = options.rate, .seed = options.seed};
    ClientLoad load(load_options, workload);
    std::atomic<bool> loaded{true};
    // This thread starts the processes, because a child process is killed when the thread that started it
    // ends.
    std::thread clients([&] {
      load.Run(options.duration);
      loaded = false;
    });
    // A prompt is computed again before a stream goes on.
    const absl::Duration grace = options.pools ? 2 * options.grace : options.grace;
    const absl::Duration allowed = testing::kSlowdown * (options.step_timeout + grace);
    Director director(group, load, faults, allowed);
    absl::Duration longest_wait;
    while (loaded || !director.done()) {
      director.Tick();
      const absl::Time begin = MonotonicNow();
      absl::SleepFor(kTick);
      longest_wait = std::max(longest_wait, MonotonicNow() - begin - kTick);
    }
    clients.join();
    for (std::string& fault : group.StopCleanly(testing::kSlowdown * absl::Seconds(40)))
      director.other().push_back(std::move(fault));
    for (const std::string& violation : director.watch().violations()) director.other().push_back(violation);
    AuditInput input{load.ledger(),    director.memory(), director.disturbances(),
                     director.start(), allowed,           director.other()};
    // The allocator keeps what these faults made the router use.
    int64_t kept_kib = 0;
    for (const auto& [kind, count] : director.carried_out())
      kept_kib = std::max(kept_kib, MemoryBoundKib(kind).value_or(0));
    input.max_growth_kib = testing::kSlowdown * (input.max_growth_kib + kept_kib);
    verdict = Audit(input);
    absl::PrintF("\n");
    PrintFaults(director, group);
    // Shows how reliable a timeout of a second is on a busy machine.
    absl::PrintF("%-44s %14.2f\n", "longest wait for a processor, s", absl::ToDoubleSeconds(longest_wait));
    if (options.pools && group.handed_over() <= 0)
      verdict.violations.push_back("no prompt was computed by one server and decoded by another");
    if (!options.memory_csv.empty()) std::ofstream(options.memory_csv) << director.memory().Csv();
  }
  ReleaseMeans(means);
  absl::PrintF("%s", verdict.table);
  for (const std::string& violation : verdict.violations) absl::PrintF("VIOLATION  %s\n", violation);
  absl::PrintF("%s\n", verdict.violations.empty() ? "no violation" : "violations");
  return verdict.violations.empty() ? 0 : 1;
}

}  // namespace bfio::chaos
