#include "chains/worker/convert_batch.h"

#include <bit>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

namespace bfio::worker {
namespace {

static_assert(std::endian::native == std::endian::little, "hidden rows travel as they are in memory");

constexpr uint32_t kMost = std::numeric_limits<int32_t>::max();

template <typename... Parts>
absl::Status Bad(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("activations: ", parts...));
}

}  // namespace

void ToProto(const MicroBatch& batch, v1::Activations& out) {
  out.Clear();
  out.set_number(batch.number);
  const StepPlan& plan = batch.plan;
  for (int32_t run = 0; run < plan.runs(); ++run) {
    out.add_run_rows(static_cast<uint32_t>(plan.run_rows[run + 1] - plan.run_rows[run]));
    out.add_run_positions(static_cast<uint32_t>(plan.positions[plan.run_rows[run]]));
    out.add_run_pages(static_cast<uint32_t>(plan.run_pages[run + 1] - plan.run_pages[run]));
  }
  out.mutable_pages()->Add(plan.pages.begin(), plan.pages.end());
  out.mutable_wanted_rows()->Add(plan.logit_rows.begin(), plan.logit_rows.end());
  out.set_hidden(batch.hidden.data(), batch.hidden.size() * sizeof(float));
}

absl::StatusOr<MicroBatch> FromProto(const v1::Activations& message) {
  MicroBatch batch;
  batch.number = message.number();
  if (message.hidden().size() % sizeof(float) != 0) {
    return Bad("hidden has ", message.hidden().size(), " bytes, not a multiple of 4");
  }
  batch.hidden.resize(message.hidden().size() / sizeof(float));
  // memcpy must not get a null pointer, even for 0 bytes.
  if (!batch.hidden.empty())
    std::memcpy(batch.hidden.data(), message.hidden().data(), message.hidden().size());
  const int runs = message.run_rows_size();
  if (message.run_positions_size() != runs || message.run_pages_size() != runs) {
    return Bad("run_rows, run_positions and run_pages have ", runs, ", ", message.run_positions_size(),
               " and ", message.run_pages_size(), " elements");
  }
  StepPlan& plan = batch.plan;
  plan.Clear();
  uint64_t rows = 0, pages = 0;
  std::vector<PageId> run_pages;
  for (int run = 0; run < runs; ++run) {
    rows += message.run_rows(run);
    // A row has at least one value, so the message's size bounds the rows.
    if (rows > batch.hidden.size()) return Bad("run_rows has more rows than hidden has values");
    if (uint64_t{message.run_positions(run)} + message.run_rows(run) > kMost) {
      return Bad("run_positions[", run, "] is ", message.run_positions(run));
    }
    const uint64_t begin = pages;
    pages += message.run_pages(run);
    if (pages > static_cast<uint64_t>(message.pages_size()))
      return Bad("run_pages counts more pages than pages has");
    run_pages.clear();
    for (uint64_t i = begin; i < pages; ++i) {
      const uint32_t page = message.pages(static_cast<int>(i));
      if (page > kMost) return Bad("pages[", i, "] is ", page);
      run_pages.push_back(static_cast<PageId>(page));
    }
    plan.AddRun(run, message.run_positions(run), std::vector<uint32_t>(message.run_rows(run)), run_pages,
                false);
  }
  if (pages != static_cast<uint64_t>(message.pages_size()))
    return Bad("pages has more pages than run_pages counts");
  for (const uint32_t row : message.wanted_rows()) {
    if (row >= rows) return Bad("wanted_rows has row ", row, ", which must be below ", rows);
    plan.logit_rows.push_back(static_cast<int32_t>(row));
  }
  return batch;
}

}  // namespace bfio::worker
