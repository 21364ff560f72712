// Steps of a decode engine whose backend has several plans under way.
#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "worker/engine/decode/decode_engine.h"

namespace bfio::worker {
namespace {

void Add(const BatchLoad& load, BatchLoad& sum) {
  sum.tokens += load.tokens;
  sum.prefill_pairs += load.prefill_pairs;
  sum.decode_context += load.decode_context;
}

}  // namespace

absl::Status DecodeEngine::StepPipelined(StepOutput& out) {
  ReserveStep(out.preempted);
  for (const Sequence& sequence : active_) out.load_tokens += sequence.load();
  ChooseDue();
  if (under_way_.empty()) {
    BFIO_RETURN_IF_ERROR(StartDue(/*last=*/true));
    ReserveStep(out.preempted);
    ChooseDue();
  }
  size_t left = under_way_.size();
  BFIO_RETURN_IF_ERROR(StartDue(left == 0));
  for (; left > 0; --left) {
    BFIO_RETURN_IF_ERROR(CollectOne(out));
    BFIO_RETURN_IF_ERROR(StartDue(left == 1));
  }
  return absl::OkStatus();
}

void DecodeEngine::ChooseDue() {
  ChooseChunks();
  ++steps_;
  CountPassedOver(chunks_, active_);
  due_.clear();
  int64_t rows = 0;
  for (const Chunk& chunk : chunks_) {
    due_.push_back({active_[chunk.which].number, chunk.rows});
    rows += chunk.rows;
  }
  const int64_t depth = backend_->depth();
  most_rows_each_ = std::max<int64_t>(1, (rows + depth - 1) / depth);
}

absl::Status DecodeEngine::StartDue(bool last) {
  const auto depth = static_cast<size_t>(backend_->depth());
  while (under_way_.size() < depth) {
    const bool all = last && under_way_.size() + 1 == depth;
    BFIO_ASSIGN_OR_RETURN(const auto started, StartOne(all ? BatchPlanner::kUnbounded : most_rows_each_));
    if (!started) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> DecodeEngine::StartOne(int64_t most_rows) {
  plan_.Clear();
  MicroBatch batch;
  size_t kept = 0;
  for (Due& due : due_) {
    Sequence* const sequence = Find(due.number);
    if (sequence == nullptr) continue;
    const auto rows = static_cast<int32_t>(std::min<int64_t>(due.rows, most_rows));
    if (rows > 0 && !sequence->drawing) {
      BFIO_ASSIGN_OR_RETURN(const auto draws, AddRows(*sequence, rows, batch.batch, batch.prefill_tokens));
      batch.parts.push_back({due.number, rows, draws});
      sequence->started += rows;
      sequence->drawing = draws;
      most_rows -= rows;
      due.rows -= rows;
    }
    if (due.rows > 0) due_[kept++] = due;
  }
  due_.resize(kept);
  if (batch.parts.empty()) return false;
  BFIO_RETURN_IF_ERROR(backend_->Start(plan_));
  under_way_.push_back(std::move(batch));
  return true;
}

absl::Status DecodeEngine::CollectOne(StepOutput& out) {
  const MicroBatch batch = std::move(under_way_.front());
  under_way_.pop_front();
  draws_.clear();
  for (const MicroBatch::Part& part : batch.parts) {
    if (!part.draws) continue;
    const Sequence* const sequence = Find(part.number);
    // The result of a row whose request has left is not used.
    draws_.push_back(sequence == nullptr
                         ? Draw()
                         : Draw{sequence->sampling, sequence->next_index(), sequence->ends, sequence->index});
  }
  drawn_.resize(draws_.size());
  BFIO_RETURN_IF_ERROR(backend_->Collect(draws_, absl::MakeSpan(drawn_)));
  out.prefill_tokens += batch.prefill_tokens;
  Add(batch.batch, out.batch);
  ended_.assign(active_.size(), 0);
  size_t draw = 0;
  for (const MicroBatch::Part& part : batch.parts) {
    Sequence* const sequence = Find(part.number);
    if (sequence != nullptr) sequence->computed += part.rows;
    if (!part.draws) continue;
    Drawn& drawn = drawn_[draw++];
    if (sequence == nullptr) continue;
    sequence->drawing = false;
    ended_[static_cast<size_t>(sequence - active_.data())] = Take(*sequence, drawn, out);
  }
  return RemoveEnded();
}

DecodeEngine::Sequence* DecodeEngine::Find(int64_t number) {
  // Numbers ascend in the order of admission.
  const auto it =
      std::lower_bound(active_.begin(), active_.end(), number,
                       [](const Sequence& sequence, int64_t number) { return sequence.number < number; });
  return it == active_.end() || it->number != number ? nullptr : &*it;
}

}  // namespace bfio::worker
