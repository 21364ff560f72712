// What a worker sends: hello and step reports, and what they do to the scheduler.
//
// The input is a series of worker messages, each with its length before it. Reports go to a scheduler whose
// group stepped into an epoch with two ranks and a few requests, as the decision loop would hand them on.
#include <memory>
#include <utility>
#include <vector>

#include "bfio/v1/worker.pb.h"
#include "google/protobuf/stubs/logging.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/policy/policy.h"
#include "router/core/scheduler/cluster.h"
#include "router/worker_link/convert.h"
#include "tests/fuzz/fuzz.h"

namespace {

namespace core = bfio::core;

constexpr core::GroupIndex kGroup = 0;

std::unique_ptr<core::Cluster> TwoRanks() {
  auto lookahead = core::MakeLookahead("hint");
  bfio::fuzz::Check(lookahead.ok(), "the lookahead is there");
  auto cluster =
      std::make_unique<core::Cluster>(core::SchedulerOptions(), core::PolicySetting{"least_tokens", {}},
                                      core::Cluster::PolicyFactory(), *std::move(lookahead));
  bfio::fuzz::Check(cluster->Apply(core::AddGroup{kGroup}).status.ok(), "the policy is there");
  for (core::RequestId id = 1; id <= 6; ++id) {
    core::RequestSpec spec;
    spec.id = id;
    spec.prefill_tokens = 10;
    spec.max_new_tokens = 5;
    bfio::fuzz::Check(cluster->Apply(core::Enqueue{spec}).status.ok(), "a good request is taken");
  }
  core::OpenEpoch epoch{kGroup, std::vector<core::EpochMember>(2)};
  for (core::EpochMember& member : epoch.members) {
    member.spec.slots = 2;
    member.spec.kv_tokens = 1000;
  }
  cluster->Apply(epoch);
  return cluster;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const google::protobuf::LogSilencer quiet;
  bfio::fuzz::Input input(data, size);
  // Not before a report needs it: most inputs have none that does.
  std::unique_ptr<core::Cluster> cluster;
  bfio::router::ReportView view;
  for (int messages = 0; !input.empty() && messages < 64; ++messages) {
    const uint8_t rank = input.Byte() % 2;
    bfio::v1::WorkerMessage message;
    if (!message.ParseFromString(input.Chunk())) continue;
    if (message.has_hello()) (void)bfio::router::CheckHello(message.hello());
    if (!message.has_step_report()) continue;
    const bfio::v1::StepReport& report = message.step_report();
    if (!bfio::router::ConvertReport(report, view).ok()) continue;
    bfio::fuzz::Check(report.token_counts_size() == 0 || report.token_counts_size() == report.handles_size(),
                      "a report that passes agrees with itself");
    if (cluster == nullptr) cluster = TwoRanks();
    if (!cluster->Apply(core::Report{kGroup, rank, view.core}).status.ok()) continue;
    if (!cluster->group(kGroup)->ReportsMissing()) cluster->Apply(core::MakePlan{kGroup});
  }
  return 0;
}
