#include "worker/scheduler/step_plan.h"

namespace bfio::worker {

void StepPlan::Clear() {
  load_tokens = prefill_tokens = 0;
  token_ids.clear();
  positions.clear();
  row_runs.clear();
  run_rows.assign(1, 0);
  sequences.clear();
  run_pages.assign(1, 0);
  pages.clear();
  logit_rows.clear();
}

void StepPlan::AddRun(SequenceIndex sequence, int64_t first_position, absl::Span<const uint32_t> tokens,
                      absl::Span<const PageId> run_page_ids, bool draws) {
  const int32_t run = runs();
  for (size_t i = 0; i < tokens.size(); ++i) {
    token_ids.push_back(tokens[i]);
    positions.push_back(static_cast<int32_t>(first_position) + static_cast<int32_t>(i));
    row_runs.push_back(run);
  }
  if (draws) logit_rows.push_back(rows() - 1);
  run_rows.push_back(rows());
  sequences.push_back(sequence);
  pages.insert(pages.end(), run_page_ids.begin(), run_page_ids.end());
  run_pages.push_back(static_cast<int32_t>(pages.size()));
}

}  // namespace bfio::worker
