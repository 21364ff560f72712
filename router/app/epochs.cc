// The decision loop when the group changes: who serves, and what becomes of requests whose worker is lost.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/spdlog.h"
#include "router/app/decision_loop.h"
#include "router/frontend/retry.h"

namespace bfio::router {

void DecisionLoop::OnEpochOpen(uint64_t epoch, const std::vector<Member*>& ranks) {
  std::vector<core::EpochMember> members;
  int64_t min_sequence = INT64_MAX, max_kv = 0;
  group_kv_ = 0;
  strangers_.clear();
  SetServiceTimes(ranks, false);
  for (Member* member : ranks) {
    core::EpochMember& out = members.emplace_back();
    out.spec.slots = static_cast<int32_t>(member->hello.slots());
    out.spec.kv_tokens = static_cast<int64_t>(member->hello.kv_tokens());
    out.spec.accepts_new = !member->draining;
    out.spec.time_per_token = member->figures.time.time_per_token;
    out.spec.time_offset = member->figures.time.time_offset;
    out.spec.service_time = member->figures.service_time;
    out.resident = member->resident;
    Adopt(*member, out);
    SetStrangersApart(*member, out);
    min_sequence = std::min<int64_t>(
        min_sequence,
        static_cast<int64_t>(std::min<uint64_t>(member->hello.max_sequence_tokens(), uint64_t{1} << 40)));
    max_kv = std::max(max_kv, out.spec.kv_tokens);
    group_kv_ += out.spec.kv_tokens;
  }
  max_sequence_ = std::min(min_sequence, max_kv + 1);
  const std::vector<core::RequestId> displaced = scheduler_.OpenEpoch(std::move(members));
  for (const core::RequestId id : requests_.Ids()) {
    RequestRecord* record = requests_.Find(id);
    record->rank = scheduler_.WorkerOf(id);
    if (record->rank) record->last_rank = record->rank;
  }
  // In reverse, each to the front: the oldest ends up first.
  for (auto it = displaced.rbegin(); it != displaced.rend(); ++it) {
    if (RequestRecord* record = requests_.Find(*it); record != nullptr) Replay(*record);
  }
  if (!displaced.empty())
    spdlog::warn("{} requests lost their worker and are placed again", displaced.size());
  AuditResidents(ranks);
  RefuseUnfit();
  if (static_cast<int64_t>(ranks.size()) >= options_.workers) settled_ = true;
  AnswerEarlyResumes();
  shortest_step_.reset();
  steps_timed_ = 0;
  recorder_.OpenEpoch(epoch, static_cast<int32_t>(ranks.size()), options_.coupled);
  report_deadline_ = absl::InfiniteFuture();
  stall_deadline_ = now_ + 2 * options_.step_timeout;
  if (hooks_.on_serving) hooks_.on_serving(true);
}

void DecisionLoop::Replay(RequestRecord& record) {
  if (record.delivered >= record.request.max_new_tokens())  // only its end was lost
    return Complete(record, v1::FINISH_REASON_LENGTH);
  if (record.forgotten || ++record.replays > options_.max_replays) {
    totals_.set_replays_refused(totals_.replays_refused() + 1);
    const char* why = record.forgotten
                          ? "the request's worker was lost, and it was too large to be kept for a replay"
                          : "the request's workers were lost, one after another";
    return Fail(record, WithRetry(absl::UnavailableError(why), kFailedRetry));
  }
  totals_.set_replayed(totals_.replayed() + 1);
  core::RequestSpec spec = record.Spec(scheduler_.NextStep());
  spec.priority += BegunBonus();
  scheduler_.Requeue(spec);
}

void DecisionLoop::OnEpochClosed() {
  scheduler_.CloseEpoch();
  report_deadline_ = stall_deadline_ = absl::InfiniteFuture();
  if (hooks_.on_serving) hooks_.on_serving(false);
}

void DecisionLoop::RefuseUnfit() {
  for (const core::RequestId id : requests_.Ids()) {
    RequestRecord* record = requests_.Find(id);
    if (record->rank || record->ended) continue;
    // It was taken in when it fitted: not the client's mistake.
    if (const absl::Status status = CheckFits(*record); !status.ok()) {
      spdlog::warn("request {} fits no worker any more: {}", record->LogName(),
                   std::string(status.message()));
      Fail(*record, WithRetry(absl::UnavailableError(absl::StrCat(
                                  "no worker that is here now can hold the request: ", status.message())),
                              kFailedRetry));
    }
  }
}

}  // namespace bfio::router
