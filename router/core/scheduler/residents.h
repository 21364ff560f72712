// The requests that run on each worker, in dense arrays, and how far they have been observed and charged. One
// array of Resident per worker (swap-remove, so its order follows from the events), and for each the tokens
// that are settled. Settling reports exposure to the lookahead and charges generated tokens to tenants. It
// happens when a resident leaves and every kSettleSteps steps, for a share of the workers at each step, so
// that no step costs a pass over all residents. Owned by the scheduler; borrows its lookahead and tenant
// counters. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/model/request.h"
#include "router/core/scheduler/tenant_service.h"

namespace bfio::core {

class Residents {
 public:
  static constexpr int64_t kSettleSteps = 16;

  Residents(Lookahead* lookahead, TenantService* service) : lookahead_(lookahead), service_(service) {}

  // All requests leave; a new epoch has this many workers.
  void Reset(size_t workers) {
    workers_.assign(workers, {});
    for (Worker& worker : workers_) worker.anew = true;
  }

  // Records the requests that come, leave or change from now on. Changed returns their ids, some twice, until
  // ForgetChanges. The residents that are present already count as one change (ChangedAnew).
  void FollowChanges() { follows_ = true; }
  absl::Span<const RequestId> Changed(WorkerIndex worker) const { return workers_[worker].changed; }
  bool ChangedAnew(WorkerIndex worker) const { return workers_[worker].anew; }
  void ForgetChanges(WorkerIndex worker) {
    workers_[worker].changed.clear();
    workers_[worker].anew = false;
  }

  // Returns the resident's index. Tokens up to `age` have been settled before.
  int32_t Add(WorkerIndex worker, const RequestSpec& spec, int64_t first_step, bool inflight, int64_t age);

  // Its worker has started it in `first_step`. Call again, with a later step, where that step has generated
  // no token.
  void Start(WorkerIndex worker, int32_t index, int64_t first_step);
  void Drop(WorkerIndex worker, int32_t index) {
    workers_[worker].residents[index].dropped = true;
    Change(worker, workers_[worker].residents[index].id);
  }
  // The worker's hint about its next token, after step `step`. REQUIRES: started by then.
  void Hint(WorkerIndex worker, int32_t index, int64_t step, double probability);

  // It was active after `step`, or not yet started; or it `ended` in this step. Call before Remove.
  void Settle(WorkerIndex worker, int32_t index, int64_t step, bool ended = false);
  void SettleAll(WorkerIndex worker, int64_t step);

  // Returns the id of the resident that took its index, if one did.
  std::optional<RequestId> Remove(WorkerIndex worker, int32_t index);

  absl::Span<const Resident> Of(WorkerIndex worker) const { return workers_[worker].residents; }
  // Age after `step` of a resident that is active then, or started later.
  int64_t Age(WorkerIndex worker, int32_t index, int64_t step) const {
    return AgeAfter(workers_[worker].residents[index], step);
  }

 private:
  static constexpr size_t kMostChanges = 64;

  struct Note {
    // Age up to which it has been observed and charged.
    int64_t age = 0;
    HintTrail trail;
  };
  struct Worker {
    std::vector<Resident> residents;
    std::vector<Note> notes;
    std::vector<RequestId> changed;
    bool anew = true;
  };
  void Change(WorkerIndex worker, RequestId id) {
    Worker& w = workers_[worker];
    if (!follows_ || w.anew) return;
    w.changed.push_back(id);
    // The changes have not been read for a long time; one change for all residents is cheaper.
    if (w.changed.size() <= 2 * w.residents.size() + kMostChanges) return;
    w.changed.clear();
    w.anew = true;
  }
  static int64_t AgeAfter(const Resident& resident, int64_t step);

  Lookahead* lookahead_;
  TenantService* service_;
  std::vector<Worker> workers_;
  bool follows_ = false;
};

}  // namespace bfio::core
