// Workers that compute prompts in chunks, oldest first, next to their decodes, as engines and
// worker/scheduler/batch_planner.h do: within a budget and up to the plan's level.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "common/cost/prompt_work.h"
#include "tests/unit/router/core/scheduler/step_group.h"

namespace bfio::testing {

class ChunkGroup : public StepGroup {
 public:
  // `obeys`: workers compute prompts only up to the plan's level.
  ChunkGroup(const std::vector<core::WorkerSpec>& specs, std::unique_ptr<core::Policy> policy,
             const BatchCost& cost, const core::SchedulerOptions& options = {},
             std::unique_ptr<core::Lookahead> lookahead = nullptr,
             core::GroupKind kind = core::GroupKind::kBarrier, bool obeys = true)
      : StepGroup(specs, std::move(policy), options, std::move(lookahead), kind),
        cost_(cost),
        obeys_(obeys) {}

  // Of a worker: its prompt tokens to compute, its prompts under way, its decodes.
  int64_t Pending(size_t g) const {
    int64_t pending = 0;
    for (const Run& run : workers[g].runs) pending += run.prompt_left;
    return pending;
  }
  int64_t Prompts(size_t g) const {
    const std::vector<Run>& runs = workers[g].runs;
    return std::count_if(runs.begin(), runs.end(), [](const Run& run) { return run.prompt_left > 0; });
  }
  int64_t Decodes(size_t g) const { return std::ssize(workers[g].runs) - Prompts(g); }
  double SecondsWithoutPrompts(size_t g) const { return Work(g, {}).SecondsWithoutPrompts(); }

  int64_t budget = 512;
  // Of each worker in the last step.
  std::vector<double> seconds;
  std::vector<int64_t> computed;

 protected:
  bool Accepts(size_t, Run& run) override {
    run.prompt_left = run.spec.tokens_to_compute();
    return true;
  }
  void Compute(size_t g, Done& done) override {
    std::vector<PromptLeft> prompts;
    for (const Run& run : workers[g].runs) {
      if (run.prompt_left > 0)
        prompts.push_back({run.prompt_left, run.spec.prefill_tokens - run.prompt_left});
    }
    const RankWork work = Work(g, prompts);
    int64_t capacity = std::max(kMinPrefillRows, budget - work.decodes);
    if (obeys_ && workers[g].level_s) capacity = std::min(capacity, TokensWithin(work, *workers[g].level_s));
    core::PrefillReport& prefill = done.report.prefill.emplace();
    prefill.token_budget = budget;
    prefill.metered = !barrier() && obeys_;
    BatchLoad load{.tokens = work.decodes, .decode_context = work.decode_context};
    seconds.resize(workers.size()), computed.resize(workers.size());
    computed[g] = 0;
    for (Run& run : workers[g].runs) {
      done.report.load_tokens += run.load;
      // An engine without a barrier takes requests in behind the step that it is in.
      const int64_t rows = !barrier() && run.age++ == 0 ? 0 : std::min(run.prompt_left, capacity);
      load.AddPrefill(rows, run.spec.prefill_tokens - run.prompt_left);
      capacity -= rows;
      computed[g] += rows;
      run.prompt_left -= rows;
      if (run.prompt_left > 0) {
        prefill.prompts.push_back({run.spec.id, run.prompt_left});
      } else {
        ++run.made;
        ++run.load;
      }
    }
    seconds[g] = cost_.Seconds(load);
    TakeEnded(g, done);
  }

 private:
  RankWork Work(size_t g, absl::Span<const PromptLeft> prompts) const {
    RankWork work{cost_, 0, 0, prompts};
    for (const Run& run : workers[g].runs) {
      if (run.prompt_left > 0) continue;
      ++work.decodes;
      work.decode_context += static_cast<double>(run.load);
    }
    return work;
  }

  const BatchCost cost_;
  const bool obeys_;
};

}  // namespace bfio::testing
