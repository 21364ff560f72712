#include "tools/sim/experiment/chain_study.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace bfio::sim {
namespace {

// As many as the paper draws from.
constexpr int64_t kNodes = 320;

}  // namespace

absl::StatusOr<RttMatrix> StudyRtts(const ExperimentContext& context, int64_t most_servers) {
  if (context.rtts.empty()) return EuropeanRtts(kNodes, 1);
  if (static_cast<int64_t>(context.rtts.size()) > most_servers) return context.rtts;
  return absl::InvalidArgumentError(absl::StrCat("the matrix of round-trip times has ", context.rtts.size(),
                                                 " nodes; ", most_servers,
                                                 " servers and an orchestrator are drawn from it"));
}

absl::Status ForVariantsAndSeeds(const ExperimentContext& context, const std::vector<std::string>& variants,
                                 const ChainTask& task) {
  const auto seeds = static_cast<size_t>(context.seeds);
  std::vector<std::string> names;
  for (const std::string& variant : variants) {
    for (size_t seed = 1; seed <= seeds; ++seed) names.push_back(absl::StrCat(variant, ", seed ", seed));
  }
  return context.runner->ForEach(
      names, [&](size_t i, const Runner::GoOn& go_on) { return task(i / seeds, i % seeds + 1, go_on); });
}

MeanTimes MeansOf(absl::Span<const ServedJob> jobs) {
  MeanTimes means;
  const size_t first = jobs.size() / 10;
  for (size_t i = first; i < jobs.size(); ++i) {
    means.wait += jobs[i].wait;
    means.service += jobs[i].service;
  }
  const auto count = static_cast<double>(jobs.size() - first);
  means.wait /= count;
  means.service /= count;
  means.response = means.wait + means.service;
  return means;
}

MeanTimes SimulateChains(const std::vector<core::ServerChain>& chains, const std::string& rule, double rate,
                         int64_t jobs, uint64_t seed, const Runner::GoOn& go_on) {
  if (core::TotalRate(chains) <= rate) {
    const double never = std::numeric_limits<double>::infinity();
    return {never, never, 0};
  }
  const auto dispatcher = *core::MakeChainDispatcher(rule, seed);
  return MeansOf(ServeOnChains(core::Rates(chains), *dispatcher, PoissonJobs(rate, jobs, seed), go_on));
}

ByVariantAndSeed::ByVariantAndSeed(size_t variants, int64_t seeds)
    : values_(variants, std::vector<double>(static_cast<size_t>(seeds), std::nan(""))) {}

Estimate ByVariantAndSeed::Mean(size_t variant) const {
  std::vector<double> samples;
  for (const double value : values_[variant]) {
    if (std::isfinite(value)) samples.push_back(value);
  }
  if (samples.empty()) return {0, std::nan(""), 0, 0};
  return EstimateMean(samples);
}

std::vector<std::pair<std::string, std::string>> ChainParameters(const ExperimentContext& context) {
  return {{"model", absl::StrCat("BLOOM-176B: ", kBloomBlocks, " blocks of ", kBloomBlockGb, " GB, ",
                                 kBloomCacheGb, " GB of cache per job and block")},
          {"mean job", absl::StrCat(kBloomJob.input_tokens, " tokens in, ", kBloomJob.output_tokens, " out")},
          {"servers", absl::StrCat(kChainServers, " unless said otherwise, a share of ", kChainFast,
                                   " with 40 GB and 120 TFLOPS, the others with 20 GB and 80 TFLOPS")},
          {"round-trip times", context.rtts.empty()
                                   ? "made up: 320 places near European cities, 0.3 (m_i + m_j) + 0.01 ms/km"
                                   : absl::StrCat("given: ", context.rtts.size(), " nodes")},
          {"target load", absl::StrCat(kChainTargetLoad)},
          {"seeds", absl::StrCat("1 to ", context.seeds, "; each draws its own places and jobs")},
          {"intervals", "95 %, Student's t over the seeds"}};
}

}  // namespace bfio::sim
