// A group of workers in lockstep that a policy drives, without scheduler and programs. Requests arrive when
// the test says, grow by one token per step and leave after `output` steps.
//
// Purpose: closed loops over many steps, fast enough for property tests. Threads: one.
#ifndef BFIO_TESTS_TESTING_MINI_GROUP_H_
#define BFIO_TESTS_TESTING_MINI_GROUP_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "router/core/policy/policy.h"
#include "router/core/scheduler/virtual_fcfs.h"
#include "tests/testing/policy_case.h"

namespace bfio::core {

struct Machine {
  int32_t slots = 1;
  int64_t kv_tokens = kAmpleKv;
  bool accepts_new = true;
  double time_per_token = 1;
  double time_offset = 0;
  double prefill_weight = 0;
};

struct Job {
  int64_t prefill = 1;
  int64_t output = 1;
  int32_t priority = 0;
  // KV tokens to reserve; 0: as many as the request holds at its end.
  int64_t kv_tokens = 0;
  double tenant_excess = 0;
};

struct Admission {
  RequestId id;
  WorkerIndex worker;
  int64_t wait;
  Job job;
};

class MiniGroup {
 public:
  explicit MiniGroup(std::vector<Machine> machines)
      : machines_(std::move(machines)), active_(machines_.size()) {}

  Machine& machine(WorkerIndex g) { return machines_[g]; }
  int64_t step() const { return step_; }
  size_t waiting() const { return waiting_.size(); }

  RequestId Enqueue(const Job& job) {
    WaitingView view;
    view.id = ++last_id_;
    view.prefill_tokens = job.prefill;
    view.kv_reserve_tokens = job.kv_tokens > 0 ? job.kv_tokens : job.prefill + job.output;
    view.enqueued_step = step_;
    view.priority = job.priority;
    view.tenant_excess_tokens = job.tenant_excess;
    // Pool order: higher priority first, then oldest first.
    const auto behind = std::find_if(waiting_.begin(), waiting_.end(),
                                     [&](const WaitingView& other) { return other.priority < job.priority; });
    jobs_.insert(jobs_.begin() + (behind - waiting_.begin()), job);
    waiting_.insert(behind, view);
    first_come_[job.priority].Arrive(view.enqueued_step);
    return last_id_;
  }
  void Cancel(size_t waiting_index) {
    first_come_[waiting_[waiting_index].priority].Leave();
    Erase(waiting_index);
  }
  void AddWorker(const Machine& machine) {
    machines_.push_back(machine);
    active_.emplace_back();
  }
  // The worker's running requests are lost.
  void RemoveLastWorker() {
    machines_.pop_back();
    active_.pop_back();
  }

  int64_t Load(WorkerIndex g) const {
    int64_t load = 0;
    for (const Running& running : active_[g]) load += running.load;
    return load;
  }

  // Valid until the group changes.
  Snapshot View() {
    views_.clear();
    for (size_t g = 0; g < machines_.size(); ++g) {
      const Machine& machine = machines_[g];
      WorkerView view;
      view.load_tokens = Load(static_cast<WorkerIndex>(g));
      view.active = static_cast<int32_t>(active_[g].size());
      view.free_slots = machine.accepts_new ? machine.slots - view.active : 0;
      view.total_kv_tokens = view.free_kv_tokens = machine.kv_tokens;
      for (const Running& running : active_[g]) view.free_kv_tokens -= running.kv_tokens;
      view.accepts_new = machine.accepts_new;
      view.time_per_token = machine.time_per_token;
      view.time_offset = machine.time_offset;
      view.prefill_weight = machine.prefill_weight;
      views_.push_back(view);
    }
    Snapshot snapshot;
    snapshot.step = step_;
    snapshot.workers = views_;
    snapshot.waiting = waiting_;
    class_waits_.clear();
    for (const auto& [priority, waits] : first_come_) {
      const int64_t next = waits.WaitOfNext(step_);
      class_waits_.push_back({priority, std::max(next, waits.p99()), std::max(next, waits.long_run_p99())});
    }
    snapshot.first_come = class_waits_;
    return snapshot;
  }

  // Admits, and takes the step: each request grows by one token; requests with all their tokens leave.
  std::vector<Admission> Apply(const std::vector<Assignment>& plan) {
    for (auto& [priority, waits] : first_come_) {
      waits.Decide(step_, std::count_if(plan.begin(), plan.end(), [&, of = priority](const Assignment& a) {
                     return waiting_[a.waiting_index].priority == of;
                   }));
    }
    std::vector<Admission> admitted;
    std::vector<char> gone(waiting_.size(), 0);
    for (const Assignment& assignment : plan) {
      const WaitingView& view = waiting_[assignment.waiting_index];
      const Job& job = jobs_[assignment.waiting_index];
      active_[assignment.worker].push_back({view.prefill_tokens, view.kv_reserve_tokens, job.output});
      admitted.push_back({view.id, assignment.worker, step_ - view.enqueued_step, job});
      gone[assignment.waiting_index] = 1;
    }
    for (size_t i = gone.size(); i-- > 0;) {
      if (gone[i]) Erase(i);
    }
    for (std::vector<Running>& running : active_) {
      for (Running& one : running) ++one.load, --one.left;
      running.erase(
          std::remove_if(running.begin(), running.end(), [](const Running& one) { return one.left <= 0; }),
          running.end());
    }
    ++step_;
    return admitted;
  }
  std::vector<Admission> Step(Policy& policy) {
    Decision decision;
    policy.Decide(View(), decision);
    return Apply(decision.assignments);
  }

 private:
  void Erase(size_t waiting_index) {
    waiting_.erase(waiting_.begin() + static_cast<int64_t>(waiting_index));
    jobs_.erase(jobs_.begin() + static_cast<int64_t>(waiting_index));
  }

  struct Running {
    int64_t load, kv_tokens, left;
  };
  std::vector<Machine> machines_;
  std::vector<std::vector<Running>> active_;
  std::vector<WaitingView> waiting_;
  std::vector<Job> jobs_;
  std::vector<WorkerView> views_;
  std::map<int32_t, VirtualFcfs, std::greater<>> first_come_;
  std::vector<ClassWait> class_waits_;
  int64_t step_ = 1;
  RequestId last_id_ = 0;
};

}  // namespace bfio::core

#endif  // BFIO_TESTS_TESTING_MINI_GROUP_H_
