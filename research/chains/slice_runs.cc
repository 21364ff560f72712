#include "research/chains/slice_runs.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "chains/core/tuning.h"
#include "common/base/rng.h"
#include "research/chains/dispatcher.h"
#include "research/chains/rivals.h"
#include "research/chains/wide_area.h"

namespace bfio::sim {
namespace {

// LLaMA-2-7B: 32 blocks; weights and cache as in the authors' simulator; 202 million parameters per block.
constexpr core::ChainService kLlama = {.blocks = 32, .block_size = 0.4375, .cache_size = 0.0336};
constexpr double kLlamaGflop = 0.405;
constexpr core::JobShape kMeanJob = {2048, 28};
// A block with the cache of 16,384 tokens, PETALS' default, which is its only cache: enough for eight mean
// jobs.
constexpr double kSlicePetalsBlockGb = 0.4375 + 16384 * 2.0 * 4096 * 2 * 1e-9;
constexpr int64_t kPetalsSessions = 8;
constexpr int64_t kReserve = 35;
// Three 3g.40gb slices and six 2g.20gb slices; round-trip times in ms, drawn for each seed.
constexpr int kFastServers = 3;
constexpr double kRoundTripsMs[] = {20, 35, 45, 55, 70, 80, 90, 100, 120};
// The gaps of the trace: mean 0.3897 s, median 0.0638 s, standard deviation 5.12 s. Two exponential
// distributions fit them: most gaps with mean 0.092 s, one in 149 with mean 44.3 s.
constexpr double kBurstRate = 11;
constexpr double kShortGap = 0.092, kLongGap = 44.3, kLongShare = 0.00672, kRate = 2.57;

struct Request {
  double input = 0, output = 0;
};

struct Case {
  WideAreaPool pool;
  std::vector<ChainJob> jobs;
  std::vector<Request> requests;
  SliceRun run;
};

double JobSeconds(const Case& of, const Request& request, const std::vector<core::ChainHop>& hops) {
  const core::JobShape shape = {request.input, request.output};
  double time = 0;
  for (const core::ChainHop& hop : hops) {
    const GpuKind& gpu = hop.server < kFastServers ? kFastGpu : kSlowGpu;
    time +=
        of.run.communication * CommunicationSeconds(shape, of.pool.round_trip[hop.server], kMessageOverhead) +
        of.run.compute * hop.range.count *
            ComputeSeconds(shape, gpu.speed, {kLlamaGflop, kLlama.block_size}, kBlockOverhead);
  }
  return time;
}

Case MakeCase(const SliceRun& run, const Trace& trace) {
  Case made;
  made.run = run;
  Rng gaps = Rng(run.seed).Fork(1), rows = Rng(run.seed).Fork(2), places = Rng(run.seed).Fork(3);
  std::vector<double> round_trips(std::begin(kRoundTripsMs), std::end(kRoundTripsMs));
  for (size_t j = round_trips.size(); j > 1; --j) std::swap(round_trips[j - 1], round_trips[places.Below(j)]);
  for (size_t j = 0; j < round_trips.size(); ++j) {
    const bool fast = j < kFastServers;
    const GpuKind& gpu = fast ? kFastGpu : kSlowGpu;
    const double round_trip = 1e-3 * round_trips[j];
    made.pool.servers.push_back(
        {absl::StrCat(fast ? "3g.40gb-" : "2g.20gb-", j), gpu.memory,
         CommunicationSeconds(kMeanJob, round_trip, kMessageOverhead),
         ComputeSeconds(kMeanJob, gpu.speed, {kLlamaGflop, kLlama.block_size}, kBlockOverhead)});
    made.pool.throughput.push_back(gpu.throughput);
    // All servers are slices.
    made.pool.throughput.back().most_blocks = kPetalsSliceBlocks;
    made.pool.round_trip.push_back(round_trip);
  }
  for (core::ChainServer& server : made.pool.servers) {
    server.communication *= run.communication;
    server.compute *= run.compute;
  }
  double at = 0;
  for (int64_t i = 0; i < run.jobs; ++i) {
    at += gaps.Exponential() * (gaps.Uniform() < kLongShare ? kLongGap : kShortGap);
    made.jobs.push_back({at, 1});
    const TraceRequest& row = trace.requests[rows.Below(trace.requests.size())];
    made.requests.push_back({static_cast<double>(row.prompt_tokens), static_cast<double>(row.output_tokens)});
  }
  return made;
}

// petals         PETALS-like, with its own default cache
// petals_slices  PETALS-like, four blocks a slice, all memory cache
// bprr           BPRR-like
// whole          JFFC with the whole model on every server
// composed       c = 35, blocks on all servers
// tuned          composed, tuned for the mean rate
// bursts         composed, blocks on all servers, tuned for bursts
constexpr const char* kSystems[] = {"petals",   "petals_slices", "bprr",  "whole",
                                    "composed", "tuned",         "bursts"};

std::vector<ServedJob> OnChains(const Case& of, const std::vector<core::ServerChain>& chains) {
  return ServeOnChains(
      core::Rates(chains), **core::MakeChainDispatcher("jffc", 1), of.jobs,
      [&](size_t job, int32_t chain) { return JobSeconds(of, of.requests[job], chains[chain].hops); });
}

// The composition with the smallest lower bound. If a burst exceeds every composition's rate, the one with
// the largest rate.
core::ChainPlan Tuned(const Case& of, const core::Demand& demand) {
  const auto sweep = core::SweepReserve(of.pool.servers, kLlama, demand);
  const core::ReserveCandidate* best = core::BestReserve(sweep);
  if (best == nullptr) {
    best = &*std::max_element(
        sweep.begin(), sweep.end(),
        [](const core::ReserveCandidate& a, const core::ReserveCandidate& b) { return a.rate < b.rate; });
  }
  return core::PlanWithReserve(of.pool.servers, kLlama, best->c, demand);
}

absl::StatusOr<std::vector<ServedJob>> Serve(const Case& of, const std::string& system) {
  const RivalSetting setting = {.service = kLlama,
                                .job = kMeanJob,
                                .petals_block_memory = kSlicePetalsBlockGb,
                                .petals_sessions = system == "petals" ? kPetalsSessions : 0,
                                .petals_slices = system == "petals_slices",
                                .time = [&](size_t job, const core::ServerChain& chain) {
                                  return JobSeconds(of, of.requests[job], chain.hops);
                                }};
  if (system == "petals" || system == "petals_slices")
    return ServeByPetals(of.pool, setting, of.jobs, of.run.seed);
  if (system == "bprr") return ServeByBprr(of.pool, setting, kRate, of.jobs);
  if (system == "whole") {
    const core::BlockRanges everywhere(of.pool.servers.size(), {0, kLlama.blocks});
    return OnChains(of, core::ComposeChains(of.pool.servers, kLlama, everywhere));
  }
  if (system == "composed")
    return OnChains(of, core::PlanWithReserve(of.pool.servers, kLlama, kReserve, {}).chains);
  if (system == "tuned") return OnChains(of, Tuned(of, {kRate, 0.7}).chains);
  if (system == "bursts") return OnChains(of, Tuned(of, {kBurstRate, 1, /*use_all=*/true}).chains);
  return absl::InvalidArgumentError(
      absl::StrCat("system '", system, "' is unknown, choose one of ", absl::StrJoin(kSystems, ", ")));
}

double Quantile(std::vector<double> values, double share) {
  const auto at = static_cast<size_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

}  // namespace

absl::StatusOr<nlohmann::ordered_json> RunOnSlices(const SliceRun& run, const std::string& system,
                                                   const Trace& trace) {
  const auto served = Serve(MakeCase(run, trace), system);
  if (!served.ok()) return served.status();
  std::vector<double> response;
  double wait = 0, service = 0;
  for (const ServedJob& job : *served) {
    response.push_back(job.response());
    wait += job.wait;
    service += job.service;
  }
  const auto count = static_cast<double>(served->size());
  return nlohmann::ordered_json{{"seed", run.seed},
                                {"system", system},
                                {"compute", run.compute},
                                {"communication", run.communication},
                                {"response_s", (wait + service) / count},
                                {"p50_s", Quantile(response, 0.5)},
                                {"p95_s", Quantile(response, 0.95)},
                                {"p99_s", Quantile(response, 0.99)},
                                {"wait_s", wait / count},
                                {"service_s", service / count}};
}

}  // namespace bfio::sim
