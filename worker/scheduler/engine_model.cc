#include "worker/scheduler/engine_model.h"

#include <algorithm>

namespace bfio::worker {

void EngineModel::Arrive(const ModelRequest& request) {
  BatchRequest left;
  left.prefill_left = request.prefill;
  left.decode_left = TokensAfterPrompt(request.decode, options_.prompt_gives_token);
  left.priority = request.priority;
  left.resident = false;
  left.kv_tokens = options_.reserve_kv ? request.prefill + request.decode : 0;
  left_.push_back(left);
  computed_.push_back({request.id, request.prefill, 0});
  tokens_ += left.prefill_left + left.decode_left;
  prompt_tokens_ += left.prefill_left;
}

BatchCapacity EngineModel::capacity() const {
  BatchCapacity capacity;
  capacity.token_budget = options_.token_budget;
  if (options_.slots != BatchCapacity::kUnbounded) capacity.free_slots = options_.slots - begun_;
  if (options_.reserve_kv && options_.kv_tokens != BatchCapacity::kUnbounded) {
    capacity.free_kv_tokens = options_.kv_tokens - reserved_;
  }
  return capacity;
}

std::optional<double> EngineModel::Start() {
  scheduler_.Form(left_, capacity(), batch_);
  if (batch_.empty()) return std::nullopt;
  load_ = BatchLoad();
  for (const Chunk& chunk : batch_) {
    BatchRequest& left = left_[chunk.which];
    const int64_t cached = computed_[chunk.which].cached;
    if (left.prefill_left > 0) {
      load_.AddPrefill(chunk.rows, cached);
    } else {
      load_.AddDecode(cached);
    }
    if (left.resident) continue;
    left.resident = true;
    ++begun_;
    reserved_ += left.kv_tokens;
  }
  if (!options_.reserve_kv && options_.kv_tokens != BatchCapacity::kUnbounded) {
    load_.overflow_tokens = std::max<int64_t>(0, resident_tokens_ + load_.tokens - options_.kv_tokens);
  }
  return std::max(options_.least_s, options_.cost.Seconds(load_));
}

void EngineModel::End(Ended& ended) {
  ended.prefilled.clear();
  ended.decoded.clear();
  ended.completed.clear();
  if (scheduler_.order() != BatchOrder::kFcfs) CountPassedOver(batch_, left_);
  for (const Chunk& chunk : batch_) {
    BatchRequest& left = left_[chunk.which];
    Computed& computed = computed_[chunk.which];
    tokens_ -= chunk.rows;
    resident_tokens_ += chunk.rows;
    computed.cached += chunk.rows;
    if (left.prefill_left > 0) {
      left.prefill_left -= chunk.rows;
      prompt_tokens_ -= chunk.rows;
      if (left.prefill_left == 0) ended.prefilled.push_back(computed.id);
    } else {
      left.decode_left -= chunk.rows;
      ended.decoded.push_back(computed.id);
    }
    if (left.available() == 0) ended.completed.push_back(computed.id);
  }
  batch_.clear();
  if (ended.completed.empty()) return;
  size_t kept = 0;
  for (size_t i = 0; i < left_.size(); ++i) {
    if (left_[i].available() == 0) {
      --begun_;
      reserved_ -= left_[i].kv_tokens;
      resident_tokens_ -= computed_[i].cached;
      continue;
    }
    left_[kept] = left_[i];
    computed_[kept] = computed_[i];
    ++kept;
  }
  left_.resize(kept);
  computed_.resize(kept);
}

}  // namespace bfio::worker
