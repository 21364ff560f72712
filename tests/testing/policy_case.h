// Snapshots in one or two lines, and a policy's decision in a form that is easy to compare.
//
// Purpose: tests of policies contain only the case and the expected decision.
#ifndef BFIO_TESTS_TESTING_POLICY_CASE_H_
#define BFIO_TESTS_TESTING_POLICY_CASE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "router/core/policy/policy.h"

namespace bfio::core {

inline constexpr int64_t kAmpleKv = int64_t{1} << 40;

// A snapshot that owns its data. Requests are added oldest first.
class PolicyCase {
 public:
  PolicyCase& Worker(int64_t load, int32_t free_slots, int64_t free_kv = kAmpleKv, int32_t active = 0) {
    workers_.push_back({load, active, free_slots, free_kv});
    return *this;
  }
  // Reserves as many KV tokens as its prefill, unless `kv` is given.
  PolicyCase& Waiting(int64_t prefill, int64_t age = 0, int64_t kv = 0, int32_t priority = 0) {
    WaitingView view = {.id = waiting_.size() + 1,
                        .prefill_tokens = prefill,
                        .kv_reserve_tokens = kv > 0 ? kv : prefill,
                        .enqueued_step = kStep - age,
                        .priority = priority};
    waiting_.push_back(view);
    return *this;
  }
  PolicyCase& WaitingAll(const std::vector<int64_t>& prefills) {
    for (int64_t prefill : prefills) Waiting(prefill);
    return *this;
  }

  // The methods below concern the worker that was added last.
  PolicyCase& TotalKv(int64_t tokens) {
    workers_.back().total_kv_tokens = tokens;
    return *this;
  }
  PolicyCase& TimePerToken(double time) {
    workers_.back().time_per_token = time;
    return *this;
  }
  PolicyCase& TimeOffset(double time) {
    workers_.back().time_offset = time;
    return *this;
  }
  // Concerns all workers.
  PolicyCase& PrefillWeight(double weight) {
    for (WorkerView& worker : workers_) worker.prefill_weight = weight;
    return *this;
  }
  PolicyCase& Draining() {
    workers_.back().accepts_new = false;
    return *this;
  }
  // Concerns the request that was added last: its row of the curves.
  PolicyCase& Curve(int32_t curve) {
    waiting_.back().curve = curve;
    return *this;
  }
  // An outlook: `load` by worker and step ahead, `curves` by curve and step ahead, H + 1 entries per row.
  PolicyCase& Ahead(int32_t horizon, const std::vector<double>& load, const std::vector<double>& curves) {
    horizon_ = horizon;
    load_ = load;
    curves_ = curves;
    return *this;
  }

  // Data of an admission rule that looks ahead: `capacity` by worker, `need` by request, `times` * `ways`
  // entries per row.
  PolicyCase& Kv(int32_t times, int32_t ways, const std::vector<int64_t>& capacity,
                 const std::vector<int64_t>& need) {
    times_ = times;
    ways_ = ways;
    capacity_ = capacity;
    need_ = need;
    for (size_t i = 0; i < waiting_.size(); ++i) waiting_[i].kv_need = static_cast<int32_t>(i);
    return *this;
  }

  Snapshot View() const {
    return {kStep, workers_, waiting_, 0, {horizon_, load_, curves_}, {times_, ways_, capacity_, need_}};
  }

  Decision Call(Policy& policy) const {
    Decision decision;
    policy.Decide(View(), decision);
    return decision;
  }
  // By waiting index: the worker of the request, or -1.
  std::vector<int32_t> WorkersOf(const Decision& decision) const {
    std::vector<int32_t> result(waiting_.size(), -1);
    for (const Assignment& assignment : decision.assignments)
      result[assignment.waiting_index] = assignment.worker;
    return result;
  }
  std::vector<int32_t> Decide(Policy& policy) const { return WorkersOf(Call(policy)); }
  std::vector<int32_t> Decide(const std::string& name, const std::string& objective = "square") const {
    PolicyOptions options = {.objective = objective};
    return Decide(**MakePolicy(name, options));
  }

 private:
  static constexpr int64_t kStep = 1'000'000;
  std::vector<WorkerView> workers_;
  std::vector<WaitingView> waiting_;
  int32_t horizon_ = 0;
  std::vector<double> load_, curves_;
  int32_t times_ = 0, ways_ = 0;
  std::vector<int64_t> capacity_, need_;
};

}  // namespace bfio::core

#endif  // BFIO_TESTS_TESTING_POLICY_CASE_H_
