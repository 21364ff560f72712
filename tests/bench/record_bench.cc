// The cost of the decision log for the decision thread: a step of G = 16 workers with B = 72 slots, all
// taken, a pool of 128 and completions after 200 tokens on average: 16 reports, the arrivals, one plan.
//   Step/log:0   without a log
//   Step/log:1   with one, in /tmp; `log_bytes` is the number of bytes per step
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "router/record/log_format.h"
#include "router/record/log_writer.h"
#include "router/record/recorder.h"

namespace bfio::record {
namespace {

constexpr int kWorkers = 16, kSlots = 72, kWaiting = 128;
constexpr int kMeanTokens = 200;

// Workers on which a request ends in each step with a fixed probability.
class Group {
 public:
  explicit Group(core::Cluster& cluster) : cluster_(cluster), rng_(1), workers_(kWorkers) {
    cluster_.Apply(core::AddGroup{});
    core::OpenEpoch epoch{0, std::vector<core::EpochMember>(kWorkers)};
    for (core::EpochMember& member : epoch.members) member.spec = {kSlots, int64_t{1} << 40, true};
    cluster_.Apply(epoch);
  }

  void Step() {
    while (cluster_.waiting() < kWaiting) {
      core::RequestSpec spec;
      spec.id = next_id_++;
      spec.prefill_tokens = 1 + static_cast<int64_t>(rng_.Gamma(0.8) * 1'200);
      spec.max_new_tokens = 4096;
      cluster_.Apply(core::Enqueue{spec});
    }
    while (const auto plan = cluster_.Apply(core::MakePlan{}).plan) {
      for (const core::Placement& placement : plan->placements)
        workers_[placement.worker].push_back(placement.id);
    }
    ++step_;
    for (int g = 0; g < kWorkers; ++g) {
      std::vector<core::RequestId>& running = workers_[g];
      finished_.clear();
      for (size_t i = 0; i < running.size();) {
        if (rng_.Below(kMeanTokens) != 0) {
          ++i;
          continue;
        }
        finished_.push_back(running[i]);
        running[i] = running.back();
        running.pop_back();
      }
      core::StepReport report;
      report.step = step_;
      report.applied_plan = step_;
      report.load_tokens = 80'000 + g;
      report.finished = finished_;
      cluster_.Apply(core::Report{0, g, report});
    }
  }

 private:
  core::Cluster& cluster_;
  Rng rng_;
  std::vector<std::vector<core::RequestId>> workers_;
  std::vector<core::RequestId> finished_;
  core::RequestId next_id_ = core::RequestId{1'800'000'000} << 20;
  int64_t step_ = 0;
};

void BM_Step(benchmark::State& state) {
  const std::string path = absl::StrCat("/tmp/bfio_record_bench.", getpid());
  const core::SchedulerOptions options;
  std::unique_ptr<Recorder> recorder;
  if (state.range(0) != 0) {
    recorder = std::make_unique<Recorder>(*LogWriter::Open({path, int64_t{1} << 30}),
                                          SessionInfo{"bench", core::RequestId{1'800'000'000} << 20}, options,
                                          core::PolicySetting{"least_tokens", {}}, "none");
  }
  core::Cluster cluster(options, {"least_tokens", {}}, {}, nullptr, recorder.get());
  Group group(cluster);
  for (auto _ : state) {
    group.Step();
    if (recorder != nullptr) recorder->Flush();
  }
  if (recorder != nullptr) {
    if (recorder->stopped()) state.SkipWithError("the disk is too slow for this");
    recorder->Close();
  }
  int64_t bytes = 0;
  for (const SegmentFile& file : ListSegments(path)) {
    bytes += file.bytes;
    std::filesystem::remove(file.path);
  }
  state.counters["log_bytes"] = static_cast<double>(bytes) / static_cast<double>(state.iterations());
}

BENCHMARK(BM_Step)->ArgName("log")->Arg(0)->Arg(1);

}  // namespace
}  // namespace bfio::record

BENCHMARK_MAIN();
