// Messages of workers: hellos, announcements and step reports, and the effect of reports on the scheduler.
//
// The input is a series of worker messages, each with its length in front. Reports go to a cluster whose
// group has opened an epoch with two ranks and a few requests, as the group would pass them on.
#include <memory>
#include <utility>
#include <vector>

#include "bfio/v1/worker.pb.h"
#include "google/protobuf/stubs/logging.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/scheduler/cluster.h"
#include "router/requests/check_request.h"
#include "router/worker_link/held_request.h"
#include "router/worker_link/wire.h"
#include "tests/fuzz/fuzz.h"

namespace {

namespace core = bfio::core;
using bfio::fuzz::Check;

std::unique_ptr<core::Cluster> TwoRanks() {
  auto lookahead = core::MakeLookahead("hint");
  Check(lookahead.ok(), "the lookahead is there");
  auto cluster =
      std::make_unique<core::Cluster>(core::SchedulerOptions(), core::PolicySetting{"least_tokens", {}},
                                      core::Cluster::PolicyFactory(), *std::move(lookahead));
  Check(cluster->Apply(core::AddGroup{0, core::GroupKind::kBarrier}).status.ok(), "a group is added");
  for (core::RequestId id = 1; id <= 6; ++id) {
    core::RequestSpec spec;
    spec.id = id;
    spec.prefill_tokens = 10;
    spec.max_new_tokens = 5;
    Check(cluster->Apply(core::Enqueue{spec}).status.ok(), "a good request is taken");
  }
  core::OpenEpoch open;
  open.members.resize(2);
  for (core::EpochMember& member : open.members) {
    member.spec.slots = 2;
    member.spec.kv_tokens = 1000;
  }
  cluster->Apply(open);
  return cluster;
}

void Apply(core::Cluster& cluster, core::WorkerIndex rank, const bfio::router::StepReport& report) {
  std::vector<core::RequestId> finished, rejected;
  for (const auto& one : report.finished) finished.push_back(one.id);
  for (const auto& one : report.rejected) rejected.push_back(one.id);
  core::Report event;
  event.worker = rank;
  event.report.step = report.step;
  event.report.applied_plan = report.applied_plan;
  event.report.load_tokens = report.load_tokens;
  event.report.finished = finished;
  event.report.rejected = rejected;
  event.report.preempted = report.preempted;
  event.report.hints = report.hints;
  event.report.group_idle = report.group_idle;
  event.report.prefill = report.prefill;
  if (!cluster.Apply(event).status.ok()) return;
  if (!cluster.group(0)->ReportsMissing()) cluster.Apply(core::MakePlan{});
}

void CheckReport(const bfio::router::StepReport& report) {
  size_t tokens = 0;
  for (const auto& one : report.tokens) tokens += one.count;
  Check(tokens == report.token_ids.size(), "a report that passes carries the tokens that it counts");
  for (const core::CompletionHint& hint : report.hints)
    Check(hint.probability >= 0 && hint.probability <= 1, "a hint is a probability");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const google::protobuf::LogSilencer quiet;
  bfio::fuzz::Input input(data, size);
  const bfio::router::RequestLimits limits;
  // Created when a report needs it: most inputs contain no such report.
  std::unique_ptr<core::Cluster> cluster;
  for (int messages = 0; !input.empty() && messages < 64; ++messages) {
    const uint8_t rank = input.Byte() % 2;
    bfio::v1::WorkerMessage message;
    if (!message.ParseFromString(input.Chunk())) continue;
    if (message.has_hello()) {
      const auto hello = bfio::router::ToHello(message.hello());
      Check(!hello.ok() || (hello->slots >= 1 && hello->kv_tokens >= 1 && hello->max_sequence_tokens >= 1),
            "sizes of a hello that passes are in range");
    }
    if (message.has_epoch_ready()) (void)bfio::router::ToEpochReady(message.epoch_ready());
    for (const bfio::v1::HeldRequest& held : message.announcement().requests()) {
      const auto request = bfio::router::FromHeld(held, limits);
      Check(!request.ok() || bfio::router::CheckRequest(request->request, limits).ok(),
            "a held request that passes is one that a client may send");
    }
    if (!message.has_step_report()) continue;
    const auto report = bfio::router::ToStepReport(message.step_report());
    if (!report.ok()) continue;
    CheckReport(*report);
    if (cluster == nullptr) cluster = TwoRanks();
    Apply(*cluster, rank, *report);
  }
  return 0;
}
