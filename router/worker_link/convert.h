// The door: protobuf messages are checked and turned into core structs here, once, and nowhere else.
//
// Purpose: whatever a client or worker sends, what gets past these functions is in range. Pure functions; any
// thread.
#ifndef BFIO_ROUTER_WORKER_LINK_CONVERT_H_
#define BFIO_ROUTER_WORKER_LINK_CONVERT_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bfio/v1/admin.pb.h"
#include "bfio/v1/inference.pb.h"
#include "bfio/v1/worker.pb.h"
#include "router/app/options.h"
#include "router/core/scheduler/scheduler.h"

namespace bfio::router {

// INVALID_ARGUMENT naming field, value and limit.
absl::Status CheckGenerate(const v1::GenerateRequest& request, const RequestLimits& limits);

// REQUIRES: CheckGenerate passed.
absl::Duration DurationOf(const google::protobuf::Duration& duration);

// Prompt length in tokens. REQUIRES: CheckGenerate passed.
uint32_t PromptTokens(const v1::GenerateRequest& request);

// Who comes back need not say again what the router knows.
bool IsBareResume(const v1::GenerateRequest& request);
// What counts of one.
v1::GenerateRequest BareResume(v1::GenerateRequest request);

absl::Status CheckHello(const v1::Hello& hello);

// A checked report: every handle with its tokens.
struct ReportView {
  core::StepReport core;
  std::vector<core::RequestId> finished;
  // Assignments to place again, and those that can never run.
  std::vector<core::RequestId> rejected;
  std::vector<core::RequestId> preempted;
  std::vector<core::CompletionHint> hints;
};
// INVALID_ARGUMENT when the packed fields contradict each other. The returned spans point into `view`.
absl::Status ConvertReport(const v1::StepReport& report, ReportView& view);

absl::StatusOr<core::PolicyOptions> ConvertPolicy(const v1::PolicySetting& setting,
                                                  const core::PolicyOptions& present);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_WORKER_LINK_CONVERT_H_
