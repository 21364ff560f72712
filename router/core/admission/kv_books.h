// The KV memory that each worker's requests will hold, where their lengths count as known: MC-SF's memory
// (mc_sf.h) of every worker of a group. A plan enters only the requests that came, left or changed since the
// last plan. Lengths come from a lookahead that treats them as known (oracle, max_tokens); with an error E
// memory is counted for the upper end. Requests that are not known to have begun, whose prompt is not
// computed, or that exceed their length are entered again with every plan: they may grow from the plan's step
// on and stay longer by `late` steps. The books depend only on the residents and the time, not on the order
// of changes. Threads: one.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "router/core/admission/mc_sf.h"
#include "router/core/lookahead/lookahead.h"

namespace bfio::core {

// The changes on one worker since the last plan.
struct KvChanges {
  struct Resident {
    // Its index among the worker's residents, and the steps of its prompt beyond one.
    int32_t index = 0;
    int64_t prompt_steps = 0;
  };
  std::vector<Resident> changed;
  std::vector<RequestId> gone;
  // `changed` names all residents; earlier entries are invalid.
  bool anew = false;

  void Clear() {
    changed.clear();
    gone.clear();
    anew = false;
  }
};

class KvBooks {
 public:
  // Number of steps by which a late plan delays the start of its requests; rarely exceeded.
  static constexpr int64_t kLateSteps = 2;

  // `length_error`: E.
  explicit KvBooks(double length_error = 0) : length_error_(length_error) {}

  // Restarts with this many workers.
  void Reset(size_t workers);
  size_t workers() const { return books_.size(); }

  // REQUIRES: times do not descend, except with changes.anew.
  void Update(WorkerIndex worker, const Lookahead& lookahead, absl::Span<const Resident> residents,
              const PlanTime& time, const KvChanges& changes);

  // The most tokens that a request has left, of which `predicted` are expected, after `generated` tokens.
  int64_t Most(int64_t predicted, int64_t generated) const;

  // The worker's memory as of the last Update.
  const McSf& memory(WorkerIndex worker) const { return books_[worker].memory; }

 private:
  struct Book {
    McSf memory;
    absl::flat_hash_map<RequestId, Resident> residents;
    // Requests that are entered again with the next plan.
    std::vector<RequestId> unsettled;
  };

  void Forget(Book& book, RequestId id);
  void Enter(Book& book, const Lookahead& lookahead, const Resident& resident, const PlanTime& time,
             int64_t prompt_steps);

  double length_error_;
  std::vector<Book> books_;
  // Scratch.
  std::vector<RequestId> again_;
  absl::flat_hash_set<RequestId> named_;
};

}  // namespace bfio::core
