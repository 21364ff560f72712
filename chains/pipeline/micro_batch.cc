#include "chains/pipeline/micro_batch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace bfio::worker {
namespace {

template <typename... Parts>
absl::Status Bad(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("micro-batch: ", parts...));
}

absl::Status CheckRun(const StepPlan& plan, int32_t run, const BatchBounds& bounds) {
  const int64_t begin = plan.run_rows[run], end = plan.run_rows[run + 1];
  if (begin >= end) return Bad("run ", run, " has no rows");
  const int64_t first = plan.positions[begin];
  if (first < 0) return Bad("run ", run, " begins at position ", first);
  const int64_t pages = int64_t{plan.run_pages[run + 1]} - plan.run_pages[run];
  if (first + (end - begin) > pages * bounds.page_tokens) {
    return Bad("run ", run, " ends at position ", first + (end - begin), ", beyond its ", pages, " pages of ",
               bounds.page_tokens, " tokens");
  }
  for (int64_t row = begin; row < end; ++row) {
    if (plan.positions[row] != first + (row - begin) || plan.row_runs[row] != run) {
      return Bad("row ", row, " is not in the order of run ", run);
    }
  }
  return absl::OkStatus();
}

}  // namespace

BatchBounds BoundsOf(int64_t hidden, const DecodeOptions& options) {
  return {hidden, MaxRows(options.limits.slots, options.step_tokens), options.limits.slots,
          PageTable::PageLimit(PageTableOptionsOf(options)), options.page_tokens};
}

absl::Status CheckMicroBatch(const MicroBatch& batch, const BatchBounds& bounds) {
  const StepPlan& plan = batch.plan;
  const auto rows = static_cast<int64_t>(plan.token_ids.size());
  const auto runs = static_cast<int64_t>(plan.sequences.size());
  if (rows < 1 || rows > bounds.max_rows) return Bad(rows, " rows; the limits are 1 and ", bounds.max_rows);
  if (static_cast<int64_t>(batch.hidden.size()) != rows * bounds.hidden) {
    return Bad(batch.hidden.size(), " hidden values for ", rows, " rows of ", bounds.hidden);
  }
  if (static_cast<int64_t>(plan.positions.size()) != rows ||
      static_cast<int64_t>(plan.row_runs.size()) != rows || runs < 1 || runs > rows ||
      static_cast<int64_t>(plan.run_rows.size()) != runs + 1 ||
      static_cast<int64_t>(plan.run_pages.size()) != runs + 1) {
    return Bad("its lists differ in length");
  }
  if (plan.run_rows.front() != 0 || plan.run_rows.back() != rows || plan.run_pages.front() != 0 ||
      plan.run_pages.back() != static_cast<int64_t>(plan.pages.size()) ||
      !std::is_sorted(plan.run_rows.begin(), plan.run_rows.end()) ||
      !std::is_sorted(plan.run_pages.begin(), plan.run_pages.end())) {
    return Bad("its runs do not cover its rows and pages in order");
  }
  if (runs > bounds.max_runs) return Bad(runs, " runs; the limit is ", bounds.max_runs);
  // Sequences share no pages, and each draws at most one token: engines allocate memory for that.
  if (static_cast<int64_t>(plan.pages.size()) > bounds.pages) {
    return Bad(plan.pages.size(), " pages; the limit is ", bounds.pages);
  }
  if (static_cast<int64_t>(plan.logit_rows.size()) > runs) {
    return Bad(plan.logit_rows.size(), " wanted rows, more than its ", runs, " runs");
  }
  for (const PageId page : plan.pages) {
    if (page < 0 || page >= bounds.pages) return Bad("page ", page, " is not below ", bounds.pages);
  }
  for (int64_t run = 0; run < runs; ++run) {
    if (absl::Status status = CheckRun(plan, static_cast<int32_t>(run), bounds); !status.ok()) return status;
  }
  int64_t last = -1;
  for (const int32_t row : plan.logit_rows) {
    if (row <= last || row >= rows)
      return Bad("wanted row ", row, " must be above ", last, " and below ", rows);
    last = row;
  }
  return absl::OkStatus();
}

std::vector<StepPlan> CutPlan(const StepPlan& plan, int64_t pieces) {
  const int64_t rows = plan.rows();
  pieces = std::min(pieces, rows);
  std::vector<StepPlan> cut;
  size_t draw = 0;
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const int64_t begin = piece * rows / pieces, end = (piece + 1) * rows / pieces;
    StepPlan& part = cut.emplace_back();
    part.Clear();
    for (int64_t row = begin; row < end;) {
      const int32_t run = plan.row_runs[row];
      const int64_t stop = std::min<int64_t>(end, plan.run_rows[run + 1]);
      const bool draws = draw < plan.logit_rows.size() && plan.logit_rows[draw] < stop;
      part.AddRun(plan.sequences[run], plan.positions[row],
                  absl::MakeConstSpan(plan.token_ids).subspan(row, stop - row),
                  absl::MakeConstSpan(plan.pages)
                      .subspan(plan.run_pages[run], plan.run_pages[run + 1] - plan.run_pages[run]),
                  draws);
      if (draws) ++draw;
      row = stop;
    }
  }
  return cut;
}

std::vector<float> WantedRows(const StepPlan& plan, absl::Span<const float> hidden) {
  const size_t width = hidden.size() / static_cast<size_t>(plan.rows());
  std::vector<float> wanted;
  wanted.reserve(plan.logit_rows.size() * width);
  for (const int32_t row : plan.logit_rows) {
    const auto from = hidden.subspan(static_cast<size_t>(row) * width, width);
    wanted.insert(wanted.end(), from.begin(), from.end());
  }
  return wanted;
}

}  // namespace bfio::worker
