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

constexpr int kOverloadSlots = 8;
constexpr double kOverloadStep = 0.03;
constexpr uint32_t kOverloadOutput = 16;
// One request in fifty is eight times as long.
constexpr double kTokensPerRequest = kOverloadOutput * (0.98 + 8 * 0.02);
constexpr double kLeast = 0.95;
constexpr absl::Duration kWarmUp = absl::Seconds(3);
constexpr absl::Duration kCapacity = absl::Seconds(15);
constexpr int kGreedyTurns = 3;
constexpr absl::Duration kProbePause = absl::Milliseconds(5);
// For each greedy peer, and in all.
constexpr int64_t kGreedyKib = 64 << 10, kMostGreedyKib = 256 << 10;

// The result of a load for some time, and tokens per second after the warm-up.
struct Phase {
  std::unique_ptr<ClientLoad> load;
  double tokens_per_s = 0;
  MemoryWatch memory;
};

Phase RunPhase(ChaosGroup& group, const Workload& workload, uint64_t seed, double rate,
               absl::Duration duration, bool authenticated = false) {
  LoadOptions options = {
      .address = group.address(), .rate = rate, .seed = seed, .authenticated = authenticated};
  options.cancelled = options.dropped = 0;
  options.plain = 1;
  Phase phase = {.load = std::make_unique<ClientLoad>(options, workload)};
  std::thread clients([&] { phase.load->Run(duration); });
  const absl::Time start = MonotonicNow();
  const auto tokens = [&] {
    const auto state = group.State();
    return state.ok() ? static_cast<double>(state->steps().generated_tokens()) : 0;
  };
  absl::SleepFor(kWarmUp);
  const double first = tokens();
  const absl::Time begin = MonotonicNow();
  while (MonotonicNow() < start + duration) {
    phase.memory.Sample(MonotonicNow() - start, group.router_pid(), group.worker_pids());
    group.Tick();
    absl::SleepFor(absl::Milliseconds(500));
  }
  phase.tokens_per_s = (tokens() - first) / absl::ToDoubleSeconds(MonotonicNow() - begin);
  clients.join();
  return phase;
}

// Null, and a line on stderr: it does not serve. `means` outlives it.
std::unique_ptr<ChaosGroup> StartGroup(int workers, const std::string& router_flag, const Means& means,
                                       const std::string& engine = "") {
  const GroupOptions options = {.workers = workers,
                                .router_flags = {router_flag},
                                .worker_flags = {absl::StrCat("--c=", kOverloadStep), "--tl=0",
                                                 absl::StrCat("--slots=", kOverloadSlots)},
                                .engine = engine};
  auto group = std::make_unique<ChaosGroup>(options, means);
  if (group->WaitServing(workers, absl::Seconds(60))) return group;
  std::fprintf(stderr, "the group did not start\n");
  return nullptr;
}

}  // namespace

int MeasureOverload(const OverloadOptions& options) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const Means means;
  const auto started =
      StartGroup(options.workers, absl::StrCat("--max_waiting=", options.max_waiting), means);
  if (started == nullptr) return 2;
  ChaosGroup& group = *started;
  const Workload workload(1, kOverloadOutput);
  const double estimate = options.workers * kOverloadSlots / kOverloadStep / kTokensPerRequest;
  const Phase capacity = RunPhase(group, workload, 1, 1.5 * estimate, kCapacity);
  const double requests_per_s = capacity.tokens_per_s / kTokensPerRequest;
  absl::PrintF("capacity: %.0f tokens/s, %.0f requests/s (under 1.5 times of it)\n", capacity.tokens_per_s,
               requests_per_s);
  const Phase over = RunPhase(group, workload, 2, options.factor * requests_per_s, options.duration);
  const Ledger& ledger = over.load->ledger();
  const double share = over.tokens_per_s / capacity.tokens_per_s;
  absl::PrintF("%g times: %.0f requests/s for %s\n", options.factor, options.factor * requests_per_s,
               absl::FormatDuration(options.duration));
  absl::PrintF("throughput of accepted work against capacity: %.3f\n", share);
  absl::PrintF("refusals: %d, p50 %.2f ms, p99 %.2f ms\n", ledger.refusal_s.size(),
               1e3 * Quantile(ledger.refusal_s, 0.5), 1e3 * Quantile(ledger.refusal_s, 0.99));
  absl::PrintF(
      "first token of what was accepted: p50 %.2f s, p99 %.2f s; --max_waiting=%d is %.2f s of capacity\n",
      Quantile(ledger.first_token_s, 0.5), Quantile(ledger.first_token_s, 0.99), options.max_waiting,
      options.max_waiting / requests_per_s);
  AuditInput input{ledger, over.memory, {}, {}, absl::Seconds(3), {}};
  Verdict verdict = Audit(input);
  if (share < kLeast)
    verdict.violations.push_back(absl::StrFormat("throughput below %g of capacity", kLeast));
  if (ledger.refusal_s.empty()) verdict.violations.push_back("nothing was refused: this was no overload");
  absl::PrintF("%s", verdict.table);
  for (const std::string& violation : verdict.violations) absl::PrintF("VIOLATION  %s\n", violation);
  return verdict.violations.empty() ? 0 : 1;
}

int MeasureGreedyPeers(const GreedyOptions& options) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const Means means;
  testing::HttpEngine engine;
  // No request of the load fits.
  engine.models = R"({"data":[{"id":"m","max_model_len":2}]})";
  engine.more_metrics = "sglang:max_running_requests 8\n";
  const auto started =
      StartGroup(options.workers, absl::StrCat("--client_tokens=", WriteTokens()), means, engine.address());
  if (started == nullptr) return 2;
  ChaosGroup& group = *started;
  const Workload workload(1, kOverloadOutput);
  const double rate = 0.5 * options.workers * kOverloadSlots / kOverloadStep / kTokensPerRequest;
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
    const Phase phase = RunPhase(group, workload, static_cast<uint64_t>(turn / 2), rate,
                                 options.duration / kGreedyTurns, /*authenticated=*/true);
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
