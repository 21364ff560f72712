// Conversion between core structs and records of the decision log.
//
// Purpose: the only code that knows both formats. Encoding loses nothing that a decision depends on. Decoding
// rejects any value that the core cannot have had, whatever the file contains. Most encoders list every
// member of a struct, so code with a new member does not compile until the member is recorded. Pure. Any
// thread.
#ifndef BFIO_ROUTER_RECORD_CODEC_H_
#define BFIO_ROUTER_RECORD_CODEC_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "bfio/v1/decision_log.pb.h"
#include "router/core/policy/policy.h"
#include "router/core/scheduler/scheduler_event.h"
#include "router/core/scheduler/scheduler_options.h"
#include "router/core/scheduler/scheduler_state.h"

namespace bfio::record {

using IdField = google::protobuf::RepeatedField<int64_t>;

// Ids are written as differences from `base`, modulo 2^64.
inline int64_t IdOut(core::RequestId id, core::RequestId base) {
  return static_cast<int64_t>(id - base);
}
inline core::RequestId IdIn(int64_t delta, core::RequestId base) {
  return base + static_cast<uint64_t>(delta);
}
// Each id as the difference from the previous one, the first from `base`.
void IdsOut(absl::Span<const core::RequestId> ids, core::RequestId base, IdField& out);
std::vector<core::RequestId> IdsIn(const IdField& ids, core::RequestId base);

// --- to the log ---

void ToLog(const core::SchedulerOptions& options, v1::LoggedOptions& out);
void ToLog(const core::PolicySetting& setting, v1::LoggedPolicy& out);
void ToLog(const BatchCost& cost, v1::LoggedWorkerTime& out);
void ToLog(const core::RequestSpec& spec, core::RequestId base, v1::LoggedRequest& out);
void ToLog(const core::WorkerSpec& spec, v1::LoggedWorker& out);
void ToLog(absl::Span<const core::EpochMember> members, core::RequestId base, v1::LoggedEpoch& out);
// Includes hints only if `with_hints`.
void ToLog(core::WorkerIndex rank, const core::StepReport& report, bool with_hints, core::RequestId base,
           v1::LoggedReport& out);
void ToLog(const core::Plan& plan, core::RequestId base, v1::LoggedPlan& out);
// Passes the state to `take` in parts of bounded size.
void ToLog(const core::ClusterState& state, core::RequestId base,
           const std::function<void(const v1::DecisionRecord&)>& take);

// --- from the log: INVALID_ARGUMENT naming field and value ---

absl::StatusOr<core::SchedulerOptions> FromLog(const v1::LoggedOptions& options);
absl::StatusOr<core::PolicySetting> FromLog(const v1::LoggedPolicy& policy);
absl::StatusOr<core::RequestSpec> FromLog(const v1::LoggedRequest& request, core::RequestId base);
absl::StatusOr<std::vector<core::EpochMember>> FromLog(const v1::LoggedEpoch& epoch, core::RequestId base);
// Returns SetTime, SetServiceTime or SetCost.
absl::StatusOr<core::SchedulerEvent> FromLog(const v1::LoggedWorkerTime& time);
absl::StatusOr<core::AddGroup> FromLog(const v1::LoggedAddGroup& add);
absl::StatusOr<core::ClusterState> FromLog(const v1::LoggedState& state, core::RequestId base);
absl::StatusOr<core::Plan> FromLog(const v1::LoggedPlan& plan, core::RequestId base);
// The placement rule of the decision, if the log has one. INVALID_ARGUMENT when there is no such rule.
absl::StatusOr<std::optional<core::PlacementRule>> RuleFromLog(const v1::LoggedPlan& plan);

// A report that owns the data of its spans.
struct OwnedReport {
  // Its spans refer to the vectors below.
  core::Report event;
  std::vector<core::RequestId> finished;
  std::vector<core::RequestId> rejected;
  std::vector<core::RequestId> preempted;
  std::vector<core::CompletionHint> hints;
  std::vector<core::CachedPrompt> cached;
};
absl::Status FromLog(const v1::LoggedReport& report, core::RequestId base, OwnedReport& out);

}  // namespace bfio::record

#endif  // BFIO_ROUTER_RECORD_CODEC_H_
