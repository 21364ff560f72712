// The decision loop and its workers: what they report, what they refuse, who leaves.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/spdlog.h"
#include "common/net/status.h"
#include "router/app/decision_loop.h"
#include "router/frontend/retry.h"
#include "router/worker_link/convert.h"

namespace bfio::router {
namespace {

// Refusals by workers that a request survives: the accounts are exact, so even one is a sign of trouble.
constexpr int kMaxRefusals = 16;
// The same where --admission believes what it does not know: a worker may be fuller than that, for a while.
constexpr int kMaxRefusalsOfBelief = 1024;

}  // namespace

void DecisionLoop::OnWorkerMessage(const std::shared_ptr<WorkerSession>& session,
                                   const v1::WorkerMessage& message) {
  Member* member = group_.Find(session.get());
  if (message.has_hello() && member == nullptr) {
    group_.OnHello(session, message.hello(), now_);
    if (member = group_.Find(session.get()); member != nullptr) some_drain_ |= member->draining;
    sessions_.push_back(session);
    next_session_check_ = std::min(next_session_check_, now_ + kSessionCheck);
    return;
  }
  if (member == nullptr) return;  // cut off, and does not know it yet
  switch (message.message_case()) {
    case v1::WorkerMessage::kAnnouncement:
      group_.OnAnnouncement(*member, message.announcement());
      return;
    case v1::WorkerMessage::kEpochReady:
      group_.OnEpochReady(*member, message.epoch_ready(), now_);
      return;
    case v1::WorkerMessage::kStepReport:
      OnStepReport(*member, message.step_report());
      return;
    case v1::WorkerMessage::kLeave:
      spdlog::info("worker {} asks to leave: {}", member->hello.worker_id(), message.leave().reason());
      OnLeave(*member);
      return;
    case v1::WorkerMessage::kHello:
    case v1::WorkerMessage::MESSAGE_NOT_SET:
      group_.Expel(*member, grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "unexpected message"), now_);
      return;
  }
}

void DecisionLoop::OnStepReport(Member& member, const v1::StepReport& report) {
  if (!member.rank || report.epoch() != member.spoken_epoch) return;  // of an epoch it has left
  const core::WorkerIndex rank = *member.rank;
  absl::Status status = ConvertReport(report, report_view_);
  if (status.ok()) {
    const int64_t drift_before = scheduler_.totals().drift_tokens;
    status = scheduler_.OnReport(rank, report_view_.core);
    if (scheduler_.totals().drift_tokens != drift_before) {
      spdlog::debug("rank {} step {}: drift of {} tokens", rank, report.step(),
                    scheduler_.totals().drift_tokens - drift_before);
    }
  }
  if (!status.ok()) {
    group_.Expel(member, ToGrpcStatus(status), now_);
    return;
  }
  group_.OnReport(member, report.step(), scheduler_.Account(rank).idle, now_);
  DeliverTokens(rank, report);
  FinishRequests(rank, report);
  OnRejections(rank, report);
  OnPreempted(rank, report);
  TakeFigures(member, report);
  recorder_.OnReport(rank, report, now_, !options_.coupled && Saturated());
  stall_deadline_ = now_ + 2 * options_.step_timeout;
  // The slowest rank's work alone: no step of the group takes less.
  if (report.group_max_local_ns() > 0 && report.barrier_error().empty()) {
    const auto local = absl::Nanoseconds(static_cast<int64_t>(
        std::min<uint64_t>(report.group_max_local_ns(), std::numeric_limits<int64_t>::max())));
    ++steps_timed_;
    shortest_step_ = std::min(local, shortest_step_.value_or(absl::InfiniteDuration()));
  }
  if (!scheduler_.ReportsMissing()) {
    report_deadline_ = absl::InfiniteFuture();
  } else if (report_deadline_ == absl::InfiniteFuture()) {
    report_deadline_ = now_ + options_.report_timeout;
  }
  if (!report.barrier_error().empty())
    group_.OnBarrierError(member, report.barrier_error(), report.missing_ranks(), now_);
}

void DecisionLoop::TakeFigures(Member& member, const v1::StepReport& report) {
  if (report.has_energy()) {
    std::vector<const WorkerFigures*> others;
    for (const Member* other : group_.members()) {
      if (other != &member) others.push_back(&other->figures);
    }
    energy_.Take(report.energy(), member.figures, others);
  }
  if (!report.has_cost()) return;
  std::optional<StepCostEstimate> cost = ConvertCost(report.cost());
  if (!cost) return;
  member.figures.cost = cost;
  UpdateTimes();
}

bool DecisionLoop::SetServiceTimes(const std::vector<Member*>& ranks, bool serving) {
  std::vector<double> told, present;
  std::vector<core::WorkerCost> costs;
  for (const Member* member : ranks) {
    told.push_back(member->hello.service_s());
    present.push_back(member->figures.service_time);
    // Loads are known of those who serve.
    if (serving && options_.worker_speeds)
      costs.push_back({member->figures.cost, scheduler_.Account(*member->rank).load_tokens});
  }
  const std::vector<double> times = core::ServiceTimesOf(told, costs, present);
  for (size_t g = 0; g < ranks.size(); ++g) ranks[g]->figures.service_time = times[g];
  return times != present;
}

void DecisionLoop::UpdateTimes() {
  if (!options_.worker_speeds || !group_.serving()) return;
  const std::vector<Member*>& ranks = group_.ranks();
  std::vector<core::WorkerCost> costs;
  std::vector<core::WorkerTime> present;
  for (const Member* member : ranks) {
    const auto load = std::max<int64_t>(0, scheduler_.Account(*member->rank).load_tokens);
    costs.push_back({member->figures.cost, load});
    present.push_back(member->figures.time);
  }
  if (SetServiceTimes(ranks, true)) {
    for (size_t g = 0; g < ranks.size(); ++g)
      scheduler_.SetServiceTime(static_cast<core::WorkerIndex>(g), ranks[g]->figures.service_time);
  }
  const std::vector<core::WorkerTime> times = core::TimesOf(costs, present);
  for (size_t g = 0; g < ranks.size(); ++g) {
    if (times[g] == present[g]) continue;
    ranks[g]->figures.time = times[g];
    scheduler_.SetTime(static_cast<core::WorkerIndex>(g), times[g].time_per_token, times[g].time_offset);
    spdlog::info("worker {}: a step counts as {:.2f} x load + {:.0f} tokens from now on",
                 ranks[g]->hello.worker_id(), times[g].time_per_token, times[g].time_offset);
  }
}

void DecisionLoop::DeliverTokens(core::WorkerIndex rank, const v1::StepReport& report) {
  int next = 0;
  for (int i = 0; i < report.handles_size(); ++i) {
    const int count = report.token_counts_size() == 0 ? 1 : static_cast<int>(report.token_counts(i));
    const int first = next;
    next += count;
    RequestRecord* record = requests_.Find(report.handles(i));
    if (record == nullptr || record->rank != rank) continue;  // cancelled meanwhile
    record->refusals = 0;
    const uint32_t allowed = record->request.max_new_tokens() - record->delivered;
    Deliver(*record, absl::MakeConstSpan(report.token_ids().data() + first,
                                         std::min<size_t>(static_cast<size_t>(count), allowed)));
  }
}

void DecisionLoop::Deliver(RequestRecord& record, absl::Span<const uint32_t> tokens) {
  if (tokens.empty()) return;
  if (!record.first_token) {
    record.first_token = now_;
    latencies_.OnFirstToken(now_ - record.accepted);
    if (tokens.size() > 1) latencies_.OnTokens(tokens.size() - 1, absl::ZeroDuration());
  } else {
    latencies_.OnTokens(tokens.size(), now_ - record.last_token);
  }
  record.last_token = now_;
  tenants_.OnTokens(record.tenant, record.request.tenant(), tokens.size());
  waiting_bytes_ -= std::exchange(record.waiting_bytes, 0);
  const core::RequestId id = record.id;
  const uint32_t index = record.delivered;
  record.delivered += static_cast<uint32_t>(tokens.size());
  int64_t bytes = 0;
  if (record.keeps_history()) {
    record.history.insert(record.history.end(), tokens.begin(), tokens.end());
    bytes = int64_t{4} * static_cast<int64_t>(tokens.size());
    if (record.kept_bytes == 0) bytes = record.prompt_bytes() + int64_t{4} * record.delivered;
  }
  if (record.stream != nullptr && record.delivered > record.send_from) {
    const uint32_t skip = record.send_from > index ? record.send_from - index : 0;
    switch (record.stream->Deliver(index + skip, tokens.subspan(skip), now_)) {
      case ClientStream::Delivery::kTaken:
        break;
      case ClientStream::Delivery::kFlush:
        FlushLater(record.stream);
        break;
      case ClientStream::Delivery::kTooSlow:
        CutOff(record);
        break;
    }
  }
  if (bytes > 0) Keep(id, bytes);
}

void DecisionLoop::FinishRequests(core::WorkerIndex rank, const v1::StepReport& report) {
  for (const v1::Finished& finished : report.finished()) {
    RequestRecord* record = requests_.Find(finished.handle());
    if (record == nullptr || record->rank != rank) continue;
    Complete(*record,
             finished.reason() == v1::FINISH_REASON_STOP ? v1::FINISH_REASON_STOP : v1::FINISH_REASON_LENGTH);
  }
}

void DecisionLoop::OnRejections(core::WorkerIndex rank, const v1::StepReport& report) {
  for (const v1::Rejection& rejection : report.rejected()) {
    RequestRecord* record = requests_.Find(rejection.handle());
    if (record == nullptr || record->rank != rank) continue;
    record->rank.reset();
    const bool room = rejection.code() == static_cast<uint32_t>(grpc::StatusCode::RESOURCE_EXHAUSTED);
    const bool exact = options_.admission.kind == core::KvGateOptions::Kind::kNone;
    // Where room is a belief, or the worker has an admission of its own, a refusal is no news.
    spdlog::log(room && !exact ? spdlog::level::debug : spdlog::level::warn, "rank {} refused request {}: {}",
                rank, record->LogName(), rejection.message());
    if (room &&
        ++record->refusals <
            (exact ? kMaxRefusals : kMaxRefusalsOfBelief)) {  // the core has put it back into the pool
      totals_.set_refused_by_workers(totals_.refused_by_workers() + 1);
      continue;
    }
    absl::Status status(static_cast<absl::StatusCode>(rejection.code()), rejection.message());
    if (room) status = WithRetry(absl::UnavailableError("no worker takes the request"), kFailedRetry);
    Fail(*record, status);
  }
}

void DecisionLoop::OnPreempted(core::WorkerIndex rank, const v1::StepReport& report) {
  // Youngest first, each to the front: the oldest ends up first.
  for (const uint64_t handle : report.preempted()) {
    RequestRecord* record = requests_.Find(handle);
    if (record == nullptr || record->rank != rank || scheduler_.core().Knows(handle)) continue;
    record->rank.reset();
    totals_.set_preempted(totals_.preempted() + 1);
    if (record->delivered >= record->request.max_new_tokens()) {
      Complete(*record, v1::FINISH_REASON_LENGTH);
    } else if (record->forgotten) {
      totals_.set_replays_refused(totals_.replays_refused() + 1);
      Fail(*record,
           WithRetry(absl::UnavailableError("the request's worker ran out of KV memory, and the router could "
                                            "not keep it for another"),
                     kFailedRetry));
    } else {
      core::RequestSpec spec = record->Spec(scheduler_.NextStep());
      // It goes before all that have not begun, even if it has made no token yet.
      spec.priority += BegunBonus();
      scheduler_.Requeue(spec);
    }
  }
}

void DecisionLoop::OnLeave(Member& member) {
  member.draining = true;
  some_drain_ = true;
  if (member.rank) scheduler_.SetAcceptsNew(*member.rank, false);
}

void DecisionLoop::ReleaseDrained() {
  if (!some_drain_) return;
  some_drain_ = false;
  for (Member* member : group_.members()) {
    if (!member->draining) continue;
    if (MayLeave(*member)) {
      group_.Release(*member, now_);
    } else {
      some_drain_ = true;
    }
  }
}

void DecisionLoop::CheckSessions(absl::Time now) {
  sessions_.erase(
      std::remove_if(sessions_.begin(), sessions_.end(), [](const auto& s) { return s.expired(); }),
      sessions_.end());
  for (const std::weak_ptr<WorkerSession>& weak : sessions_) {
    const std::shared_ptr<WorkerSession> session = weak.lock();
    if (session != nullptr && session->BreakOffIfStuck(now, options_.step_timeout)) {
      spdlog::warn("the worker at {} takes no messages and is cut off", session->peer());
    }
  }
  next_session_check_ = sessions_.empty() ? absl::InfiniteFuture() : now + kSessionCheck;
}

bool DecisionLoop::MayLeave(const Member& member) {
  // It has never served; but it may bring what an earlier router gave it.
  if (!member.rank) return !member.survivor;
  // Between epochs it is not known what it holds.
  if (group_.ByRank(*member.rank) != &member) return false;
  const core::Scheduler::WorkerAccount account = scheduler_.Account(*member.rank);
  return account.active + account.inflight == 0;
}

absl::Status DecisionLoop::DrainWorker(const std::string& worker_id) {
  Member* member = group_.FindById(worker_id);
  if (member == nullptr) return absl::NotFoundError(absl::StrCat("no worker ", worker_id));
  spdlog::info("draining worker {}", worker_id);
  OnLeave(*member);
  return absl::OkStatus();
}

}  // namespace bfio::router
