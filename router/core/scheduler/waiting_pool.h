// The waiting pool: requests that the router has accepted and not yet placed. Keeps WaitingView records ready
// for a policy, so that a snapshot costs nothing per waiting request. Order: higher priority first, then
// least senior_step (oldest first where none is senior), then the earlier deadline, then order of arrival.
// Owned by Scheduler; one thread. Cost: requests that enter alike, one after another, are sorted and merged
// with the pool in one pass when it is read next, so a lost group's requests return in linear time. At the
// back they enter at once. RemoveMany is one pass over the pool; so are all Removes between two reads of it.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "router/core/model/request.h"
#include "router/core/model/snapshot.h"

namespace bfio::core {

// Whether `a` is more urgent than `b`: by priority, senior_step, deadline. Equal requests are in order of
// arrival.
inline bool Precedes(const WaitingView& a, const WaitingView& b) {
  if (a.priority != b.priority) return a.priority > b.priority;
  if (a.senior_step() != b.senior_step()) return a.senior_step() < b.senior_step();
  return a.deadline_us < b.deadline_us;
}

class WaitingPool {
 public:
  // REQUIRES: !Contains(request.id).
  void Add(const RequestSpec& request, int64_t enqueued_step);

  // Adds the request ahead of all others of the same priority. REQUIRES: !Contains(request.id).
  void AddFront(const RequestSpec& request, int64_t enqueued_step);

  // Adds a request that was placed and is returned, by its age and deadline, ahead of equally urgent ones.
  // REQUIRES: !Contains(request.id).
  void Return(const RequestSpec& request, int64_t enqueued_step);

  bool Contains(RequestId id) const { return specs_.contains(id); }
  // REQUIRES: Contains(id).
  const RequestSpec& Spec(RequestId id) const { return specs_.at(id); }

  // Returns false when the id is not here.
  bool Remove(RequestId id);

  // Removes the requests at these indices of views(). REQUIRES: distinct, in range.
  void RemoveMany(absl::Span<const Assignment> chosen);

  // Removes the requests that a group of that ability cannot run from views() until ShowAll. O(1) where there
  // are none. REQUIRES: none is hidden. Until ShowAll, requests may be added, and removed from views().
  void Hide(const GroupAbility& ability);
  void ShowAll();
  int64_t hidden() const { return static_cast<int64_t>(hidden_.size()); }
  // Of the requests that have any of these RequestSpec::needs.
  struct Needing {
    int64_t requests = 0, tokens = 0;
  };
  Needing needing(uint32_t needs) const;

  // The requests that are not hidden.
  absl::Span<const WaitingView> views() const {
    Settle();
    return views_;
  }
  // For the fields that change with every plan (curve, those of the tenant, passed_over); do not write
  // others.
  absl::Span<WaitingView> mutable_views() {
    Settle();
    return absl::MakeSpan(views_);
  }
  int64_t size() const { return std::ssize(views_) + std::ssize(entering_) - std::ssize(leaving_); }
  bool empty() const { return size() == 0; }
  // Prompt tokens of all requests, hidden ones included (RequestSpec::tokens_to_compute).
  int64_t tokens_to_compute() const { return tokens_to_compute_; }
  // Number of views that have been moved or checked so far to let others in and out.
  int64_t moved() const { return moved_; }

 private:
  struct Hidden {
    WaitingView view;
    // Number of requests in views_ that come before it.
    size_t before = 0;
  };

  void Enter(const RequestSpec& request);
  void Leave(RequestId id);
  void CountNeeds(const RequestSpec& request, int64_t sign);
  // Where a request enters: by Precedes behind equally urgent ones, or ahead of them; or ahead of its class.
  enum class Entry : uint8_t { kBehind, kAhead, kFront };
  static bool Less(Entry entry, const WaitingView& a, const WaitingView& b) {
    return entry == Entry::kFront ? a.priority > b.priority : Precedes(a, b);
  }
  // Whether a request that enters goes before that one.
  static bool Before(Entry entry, const WaitingView& a, const WaitingView& b) {
    return entry == Entry::kBehind ? Less(entry, a, b) : !Less(entry, b, a);
  }
  void Insert(const RequestSpec& request, int64_t enqueued_step, Entry entry);
  // Takes out what is leaving, and merges what has entered: each request goes ahead of all at the back that
  // it is before, and behind hidden requests at that position.
  void Settle() const;

  // views() settles, which changes nothing that can be seen.
  mutable std::vector<WaitingView> views_;
  // In the order in which they have come, all in the same way.
  mutable std::vector<WaitingView> entering_;
  // Removed, with their views still here.
  mutable absl::flat_hash_set<RequestId> leaving_;
  Entry entry_ = Entry::kBehind;
  mutable int64_t moved_ = 0;
  absl::flat_hash_map<RequestId, RequestSpec> specs_;
  int64_t tokens_to_compute_ = 0;
  // In pool order.
  mutable std::vector<Hidden> hidden_;
  // By bit of RequestSpec::needs, requests with several bits in each; a bound of the longest request's
  // kv_reserve_tokens.
  std::array<Needing, RequestSpec::kNumNeeds> needing_;
  int64_t longest_ = 0;
  // Number of requests that began on a model, and those models.
  int64_t bound_ = 0;
  absl::flat_hash_map<uint32_t, int64_t> bound_to_;
  std::vector<char> gone_;
};

}  // namespace bfio::core
