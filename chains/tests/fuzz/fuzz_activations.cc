// Messages from another server of a chain: each is refused or decodes to rows that fit the chain's KV cache.
#include "bfio/v1/pipeline.pb.h"
#include "chains/pipeline/micro_batch.h"
#include "chains/worker/convert_batch.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using bfio::fuzz::Check;
  bfio::v1::Activations message;
  if (!message.ParseFromArray(data, static_cast<int>(size))) return 0;
  const auto batch = bfio::worker::FromProto(message);
  if (!batch.ok()) return 0;
  const bfio::worker::BatchBounds bounds = {2, 8, 6, 16, 16};
  if (!bfio::worker::CheckMicroBatch(*batch, bounds).ok()) return 0;
  const bfio::worker::StepPlan& plan = batch->plan;
  Check(plan.rows() >= 1 && plan.rows() <= 8, "rows are within bounds");
  Check(plan.runs() <= 6 && plan.draws() <= plan.runs(), "runs and draws are within bounds");
  Check(plan.pages.size() <= 16, "pages are within bounds");
  Check(batch->hidden.size() == static_cast<size_t>(2 * plan.rows()), "every row has its hidden state");
  for (int32_t row = 0; row < plan.rows(); ++row) {
    const int32_t run = plan.row_runs[row];
    Check(run >= 0 && run < plan.runs(), "every row has a run");
    const int32_t place = plan.run_pages[run] + plan.positions[row] / bounds.page_tokens;
    Check(place < plan.run_pages[run + 1], "every position has a page of its run");
    Check(plan.pages[place] >= 0 && plan.pages[place] < bounds.pages, "every page exists");
  }
  for (const auto& piece : bfio::worker::CutPlan(plan, 3)) Check(piece.rows() >= 1, "no piece is empty");
  Check(bfio::worker::WantedRows(plan, batch->hidden).size() == 2 * plan.logit_rows.size(),
        "wanted rows are there");
  return 0;
}
