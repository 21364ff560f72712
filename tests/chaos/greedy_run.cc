#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "tests/chaos/audit.h"
#include "tests/chaos/chaos_group.h"
#include "tests/chaos/client_load.h"
#include "tests/chaos/greedy_peer.h"
#include "tests/chaos/memory_watch.h"
#include "tests/chaos/runs.h"
#include "tests/chaos/workload.h"
#include "tests/testing/http_engine.h"

namespace bfio::chaos {
namespace {

constexpr int kGreedySlots = 8;
constexpr double kGreedyStep = 0.03;
constexpr uint32_t kGreedyOutput = 16;
// One request in fifty is eight times as long.
constexpr double kTokensPerRequest = kGreedyOutput * (0.98 + 8 * 0.02);
constexpr int kGreedyTurns = 3;
constexpr absl::Duration kProbePause = absl::Milliseconds(5);
// For each greedy peer, and in all.
constexpr int64_t kGreedyKib = 64 << 10, kMostGreedyKib = 256 << 10;

// The result of a load for some time.
struct Phase {
  std::unique_ptr<ClientLoad> load;
  MemoryWatch memory;
};

Phase RunPhase(ChaosGroup& group, const Workload& workload, uint64_t seed, double rate,
               absl::Duration duration) {
  LoadOptions options = {.address = group.address(), .rate = rate, .seed = seed};
  options.cancelled = options.dropped = 0;
  options.plain = 1;
  Phase phase = {.load = std::make_unique<ClientLoad>(options, workload)};
  std::thread clients([&] { phase.load->Run(duration); });
  const absl::Time start = MonotonicNow();
  while (MonotonicNow() < start + duration) {
    phase.memory.Sample(MonotonicNow() - start, group.router_pid(), group.worker_pids());
    group.Tick();
    absl::SleepFor(absl::Milliseconds(500));
  }
  clients.join();
  return phase;
}

}  // namespace

int MeasureGreedyPeers(const GreedyOptions& options) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const Means means;
  testing::HttpEngine engine;
  // No request of the load fits.
  engine.models = R"({"data":[{"id":"m","max_model_len":2}]})";
  engine.more_metrics = "sglang:max_running_requests 8\n";
  ChaosGroup group(
      {.workers = options.workers,
       .router_flags = {absl::StrCat("--client_tokens=", WriteTokens())},
       .worker_flags = {absl::StrCat("--c=", kGreedyStep), "--tl=0", absl::StrCat("--slots=", kGreedySlots)},
       .engine = engine.address()},
      means);
  if (!group.WaitServing(options.workers, absl::Seconds(60))) {
    std::fprintf(stderr, "the group did not start\n");
    return 2;
  }
  const Workload workload(1, kGreedyOutput);
  const double rate = 0.5 * options.workers * kGreedySlots / kGreedyStep / kTokensPerRequest;
  const std::vector<PortProbe> probes = ProbesOf(group.ports());
  // By port, and without and with greedy peers; those of the load's first tokens are the last.
  std::vector<std::array<std::vector<float>, 2>> waits(probes.size() + 1);
  int64_t calls = 0, kib[2] = {};
  Verdict verdict;
  for (int turn = 0; turn < 2 * kGreedyTurns; ++turn) {
    const bool greedy = turn % 2 == 1;
    std::vector<std::unique_ptr<GreedyPeer>> peers;
    for (int i = 0; greedy && i < options.peers; ++i) {
      peers.push_back(
          std::make_unique<GreedyPeer>(GreedyPeer::Options{.ports = group.ports(),
                                                           .seed = options.seed + turn * options.peers + i,
                                                           .address = absl::StrCat("127.0.0.", 2 + i),
                                                           .engine = i == 0 ? &engine : nullptr}));
    }
    std::map<std::string, int> failures;
    std::atomic<bool> over{false};
    std::thread prober([&] {
      for (size_t i = 0; !over; i = (i + 1) % probes.size()) {
        const absl::Time begin = MonotonicNow();
        const std::string why = probes[i].ask();
        if (!why.empty()) ++failures[absl::StrCat("the ", probes[i].port, " port: ", why)];
        waits[i][greedy].push_back(static_cast<float>(absl::ToDoubleSeconds(MonotonicNow() - begin)));
        absl::SleepFor(kProbePause);
      }
    });
    const Phase phase =
        RunPhase(group, workload, static_cast<uint64_t>(turn / 2), rate, options.duration / kGreedyTurns);
    over = true;
    prober.join();
    for (const auto& peer : peers) calls += peer->calls();
    const Ledger& ledger = phase.load->ledger();
    std::vector<float>& first_tokens = waits.back()[greedy];
    first_tokens.insert(first_tokens.end(), ledger.first_token_s.begin(), ledger.first_token_s.end());
    // Memory that the first peers have left with the allocator counts as theirs.
    if (greedy || turn == 0) kib[greedy] = std::max(kib[greedy], phase.memory.router_peak());
    for (const auto& [ending, count] : ledger.endings)
      failures["the load: " + ending] += static_cast<int>(count);
    int64_t failed = ledger.sent;
    for (const auto& [fate, count] : ledger.fates) failed -= fate == Fate::kCompleted ? count : 0;
    if (failed > 0) failures["the load"] = static_cast<int>(failed);
    for (const auto& [what, count] : failures)
      verdict.violations.push_back(absl::StrCat("turn ", turn, ": failed ", count, " times: ", what));
  }
  absl::PrintF("%d greedy peers began %d calls; beside them %.0f requests/s\n", options.peers, calls, rate);
  for (size_t i = 0; i < waits.size(); ++i) {
    const std::string what = i < probes.size() ? absl::StrCat("the ", probes[i].port, " port's answer")
                                               : std::string("the first token");
    const double before = Quantile(waits[i][0], 0.99), with = Quantile(waits[i][1], 0.99);
    absl::PrintF("%s without and with them: p50 %.4f and %.4f s, p99 %.4f and %.4f s\n", what,
                 Quantile(waits[i][0], 0.5), Quantile(waits[i][1], 0.5), before, with);
    if (options.bound_waits && with > std::max(2 * before, before + 0.05))
      verdict.violations.push_back(absl::StrCat("others wait longer for ", what));
  }
  absl::PrintF("router's memory, peak: %d and %d MiB\n", kib[0] >> 10, kib[1] >> 10);
  if (kib[1] - kib[0] > testing::kSlowdown * std::min(options.peers * kGreedyKib, kMostGreedyKib))
    verdict.violations.push_back("the router's memory grew too much");
  for (const std::string& violation : verdict.violations) absl::PrintF("VIOLATION  %s\n", violation);
  return verdict.violations.empty() ? 0 : 1;
}

}  // namespace bfio::chaos
