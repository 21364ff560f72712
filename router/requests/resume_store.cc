#include "router/requests/resume_store.h"

#include <algorithm>

namespace bfio::router {

void ResumeStore::Wait(RequestRecord& record, absl::Time now) {
  record.resume_by = now + options_.timeout;
  deadlines_.emplace_back(record.resume_by, record.id);
}

void ResumeStore::Retain(RequestRecord& record, const Finish& finish, absl::Time now) {
  record.ended = finish;
  ++ended_count_;
  ended_.push_back(record.id);
  Wait(record, now);
}

std::optional<core::RequestId> ResumeStore::TakeOldestEnded(const RequestTable& table) {
  while (!ended_.empty()) {
    const core::RequestId id = ended_.front();
    ended_.pop_front();
    if (table.Find(id) != nullptr) return id;
  }
  return std::nullopt;
}

std::optional<core::RequestId> ResumeStore::TakeExpired(const RequestTable& table, absl::Time now) {
  if (deadlines_.empty() || deadlines_.front().first > now) {
    // All are kept equally long, so those that ended first are removed first.
    while (!ended_.empty() && table.Find(ended_.front()) == nullptr) ended_.pop_front();
    return std::nullopt;
  }
  const core::RequestId id = deadlines_.front().second;
  deadlines_.pop_front();
  return id;
}

void ResumeStore::Linger(const std::shared_ptr<TokenSink>& sink, absl::Time now) {
  lingering_.emplace_back(now + options_.linger, sink);
}

void ResumeStore::BreakOffLingering(absl::Time now) {
  while (!lingering_.empty() && lingering_.front().first <= now) {
    if (const auto sink = lingering_.front().second.lock(); sink != nullptr) sink->BreakOff();
    lingering_.pop_front();
  }
}

bool ResumeStore::Hold(EarlyResume& early, int64_t concurrent) {
  const int64_t bytes =
      early.request.prompt_bytes() + int64_t{4} * static_cast<int64_t>(early.request.received.size());
  const Peer tenant{early.request.tenant, ""};
  if (concurrent > 0 && early_requests_.held(tenant) >= concurrent) return false;
  if (!early_requests_.May(tenant) || !early_bytes_.May(tenant, bytes)) return false;
  early_requests_.Hold(tenant);
  early_bytes_.Hold(tenant, bytes);
  early_.push_back(std::move(early));
  return true;
}

std::vector<EarlyResume> ResumeStore::TakeEarly() {
  early_requests_ = FairShares(options_.max_early);
  early_bytes_ = FairShares(options_.max_early_bytes);
  return std::exchange(early_, {});
}

std::optional<EarlyResume> ResumeStore::TakeEarlyBySink(uint64_t sink_id) {
  const auto it = std::find_if(early_.begin(), early_.end(),
                               [&](const EarlyResume& early) { return early.sink->id() == sink_id; });
  if (it == early_.end()) return std::nullopt;
  EarlyResume early = std::move(*it);
  early_.erase(it);
  return early;
}

absl::Time ResumeStore::next_deadline() const {
  absl::Time next = absl::InfiniteFuture();
  if (!deadlines_.empty()) next = deadlines_.front().first;
  if (!lingering_.empty()) next = std::min(next, lingering_.front().first);
  return next;
}

}  // namespace bfio::router
