// A group whose workers generate a token per request and step.
//
// Purpose: a test says what arrives and what happens to requests; the group makes plans, applies them, runs
// steps and reports them exactly, so that any drift is the scheduler's. Derived classes change what a worker
// does. Threads: one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "router/core/policy/place_in_order.h"
#include "tests/testing/one_group.h"

namespace bfio::testing {

// Places requests in order, each on the first worker that it fits, and keeps what it was shown.
class FirstFit : public core::Policy {
 public:
  absl::string_view name() const override { return "first_fit"; }
  void Decide(const core::Snapshot& snapshot, core::Decision& decision) override {
    steps.push_back(snapshot.step);
    workers.assign(snapshot.workers.begin(), snapshot.workers.end());
    waiting.assign(snapshot.waiting.begin(), snapshot.waiting.end());
    decision.stopped_early = stopped_early;
    core::FreeCapacity free;
    free.Reset(snapshot);
    core::PlaceInOrder(snapshot, free, decision.assignments, [&](const core::WaitingView& request) {
      return core::LeastKey(free, request, [](const core::WorkerView&) { return 0; });
    });
  }

  bool stopped_early = false;
  std::vector<int64_t> steps;
  std::vector<core::WorkerView> workers;
  std::vector<core::WaitingView> waiting;
};

inline core::RequestSpec Request(core::RequestId id, int64_t prompt = 10, int64_t max_new = 50) {
  return {.id = id, .prefill_tokens = prompt, .max_new_tokens = max_new};
}

class StepGroup {
 public:
  struct Run {
    core::RequestSpec spec;
    // Tokens to generate, and those generated; tokens held; prompt tokens or steps to compute, where a
    // derived class counts them; steps taken.
    int64_t output = 0, made = 0, load = 0, prompt_left = 0, age = 0;
  };
  struct Part {
    int64_t number = 0;
    std::vector<core::RequestId> placed, dropped;
    std::optional<double> level_s;
  };
  struct Worker {
    std::vector<Run> runs;
    int64_t step = 0, applied = 0;
    std::optional<double> level_s;
    // Parts of plans that it has not applied.
    std::deque<Part> parts;
  };
  // What a worker has done in a step; the report names the lists beside it.
  struct Done {
    core::StepReport report;
    std::vector<core::RequestId> finished, rejected, preempted;
    std::vector<core::CompletionHint> hints;
  };

  explicit StepGroup(const std::vector<core::WorkerSpec>& specs,
                     std::unique_ptr<core::Policy> policy = std::make_unique<FirstFit>(),
                     const core::SchedulerOptions& options = {},
                     std::unique_ptr<core::Lookahead> lookahead = nullptr,
                     core::GroupKind kind = core::GroupKind::kBarrier,
                     core::EventObserver* observer = nullptr)
      : group(options, std::move(policy), std::move(lookahead), kind, observer),
        barrier_(kind == core::GroupKind::kBarrier) {
    Open(specs);
  }
  virtual ~StepGroup() = default;

  // `output`: tokens that it will generate; 0: max_new_tokens.
  void Enqueue(const core::RequestSpec& spec, int64_t output = 0) {
    ASSERT_TRUE(group.Enqueue(spec).ok());
    requests[spec.id] = {.spec = spec, .output = output > 0 ? output : spec.max_new_tokens};
  }
  // Enqueues requests of 10 + 50 tokens.
  void Wait(core::RequestId first, core::RequestId last) {
    for (core::RequestId id = first; id <= last; ++id) Enqueue(Request(id));
  }
  // The request has lost its worker and waits again, with the tokens that it has generated.
  void Requeue(Run run) {
    run.spec.prefill_tokens += run.made;
    run.spec.generated_tokens += run.made;
    run.spec.max_new_tokens -= run.made;
    run.output -= run.made;
    run.made = 0;
    requests[run.spec.id] = run;
    group.Requeue(run.spec);
  }

  // Opens an epoch in which the first workers keep their requests; those of others wait again.
  void Open(const std::vector<core::WorkerSpec>& specs) {
    for (size_t g = specs.size(); g < workers.size(); ++g) {
      for (const Run& run : workers[g].runs) requests[run.spec.id] = run;
    }
    workers.resize(specs.size());
    std::vector<core::EpochMember> members(specs.size());
    for (size_t g = 0; g < specs.size(); ++g) {
      workers[g] = {.runs = std::move(workers[g].runs)};
      members[g].spec = specs[g];
      for (const Run& run : workers[g].runs) members[g].resident.push_back({run.spec.id, run.load});
    }
    for (const core::RequestId id : group.OpenEpoch(std::move(members))) Requeue(requests.at(id));
  }

  // Makes all plans that can be made now. Returns what they place and drop: "2@0 -1@1" is request 2 on worker
  // 0, and request 1 dropped from worker 1.
  std::string Plan(bool force = false) {
    std::string text;
    while (const auto plan = group.MakePlan(std::exchange(force, false), rule)) {
      last = *plan;
      OnPlan(*plan);
      std::vector<Part> parts(workers.size());
      for (const core::Placement& placement : plan->placements) {
        parts[static_cast<size_t>(placement.worker)].placed.push_back(placement.id);
        absl::StrAppend(&text, text.empty() ? "" : " ", placement.id, "@", placement.worker);
      }
      for (const core::Drop& drop : plan->drops) {
        parts[static_cast<size_t>(drop.worker)].dropped.push_back(drop.id);
        absl::StrAppend(&text, text.empty() ? "-" : " -", drop.id, "@", drop.worker);
      }
      for (size_t g = 0; g < workers.size(); ++g) {
        parts[g].number = barrier_ ? plan->apply_step : plan->apply_steps[g];
        parts[g].level_s = plan->level_s;
        if (parts[g].number > 0) workers[g].parts.push_back(std::move(parts[g]));
      }
    }
    return text;
  }

  // Makes plans, and all workers take a step, unless there is nothing to do.
  void Step(int steps = 1) {
    for (; steps > 0; --steps) {
      Plan();
      if (group.Parked()) return;
      std::vector<Done> done(workers.size());
      const bool here = PlansArrive();
      for (size_t g = 0; g < workers.size(); ++g) Take(g, here, done[g]);
      const bool idle = std::none_of(workers.begin(), workers.end(), HasWork);
      for (size_t g = 0; g < workers.size(); ++g) {
        Done& of = done[g];
        if (of.report.step == 0) continue;
        of.report.applied_plan = workers[g].applied;
        of.report.load_tokens += drift;
        of.report.finished = of.finished;
        of.report.rejected = of.rejected;
        of.report.preempted = of.preempted;
        of.report.hints = of.hints;
        of.report.group_idle = barrier_ ? idle : !HasWork(workers[g]);
        ASSERT_TRUE(group.OnReport(static_cast<core::WorkerIndex>(g), of.report).ok());
        OnReported(g, of);
        if (!barrier_) Plan();
      }
      drift = 0;
    }
  }

  // In the next step: the request ends; its worker refuses it, or preempts it.
  void End(core::RequestId id) {
    Run* const run = Find(id);
    (run != nullptr ? *run : requests.at(id)).output = run != nullptr ? run->made + 1 : 1;
  }
  void Refuse(core::RequestId id) { refuse_.insert(id); }
  void Preempt(core::RequestId id) { preempt_.insert(id); }

  // The request on its worker; null: it is on none.
  Run* Find(core::RequestId id) {
    for (Worker& worker : workers) {
      for (Run& run : worker.runs) {
        if (run.spec.id == id) return &run;
      }
    }
    return nullptr;
  }
  core::Scheduler::WorkerAccount Account(core::WorkerIndex worker = 0) const { return group.Account(worker); }
  bool barrier() const { return barrier_; }
  core::SchedulerTotals totals() const { return group.totals(); }

  OneGroup group;
  std::vector<Worker> workers;
  // All requests, as they were enqueued last.
  std::map<core::RequestId, Run> requests;
  core::Plan last;
  // By how much all workers report more than they hold in the next step.
  int64_t drift = 0;
  // Whether plans that are due have arrived.
  bool arrive = true;
  // By which plans place requests; unset: by the one that the group chooses.
  std::optional<core::PlacementRule> rule;

 protected:
  virtual void OnPlan(const core::Plan&) {}
  virtual void OnReported(size_t, const Done&) {}
  virtual bool PlansArrive() { return arrive; }
  virtual bool Accepts(size_t, Run& run) { return refuse_.erase(run.spec.id) == 0; }
  virtual void Compute(size_t g, Done& done) {
    std::erase_if(workers[g].runs, [&](const Run& run) {
      if (preempt_.erase(run.spec.id) == 0) return false;
      done.preempted.push_back(run.spec.id);
      return true;
    });
    for (Run& run : workers[g].runs) {
      done.report.load_tokens += run.load++;
      ++run.made;
    }
    TakeEnded(g, done);
  }
  void TakeEnded(size_t g, Done& done) {
    std::erase_if(workers[g].runs, [&](const Run& run) {
      if (run.made < run.output) return false;
      done.finished.push_back(run.spec.id);
      return true;
    });
  }

 private:
  static bool HasWork(const Worker& worker) {
    return !worker.runs.empty() || std::any_of(worker.parts.begin(), worker.parts.end(),
                                               [](const Part& part) { return !part.placed.empty(); });
  }
  void Take(size_t g, bool here, Done& done) {
    Worker& worker = workers[g];
    if (!barrier_ && !HasWork(worker)) return;
    done.report.step = ++worker.step;
    while (here && !worker.parts.empty() && (!barrier_ || worker.parts.front().number <= worker.step)) {
      const Part& part = worker.parts.front();
      std::erase_if(worker.runs, [&](const Run& run) {
        return std::count(part.dropped.begin(), part.dropped.end(), run.spec.id) > 0;
      });
      for (const core::RequestId id : part.placed) {
        Run run = requests.at(id);
        run.load = run.spec.prefill_tokens;
        if (Accepts(g, run)) {
          worker.runs.push_back(run);
        } else {
          done.rejected.push_back(id);
        }
      }
      worker.applied = part.number;
      worker.level_s = part.level_s;
      worker.parts.pop_front();
    }
    Compute(g, done);
  }

  const bool barrier_;
  std::set<core::RequestId> refuse_, preempt_;
};

}  // namespace bfio::testing
