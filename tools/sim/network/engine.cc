#include "tools/sim/network/engine.h"

#include <algorithm>

namespace bfio::sim {

Engine::Engine(const worker::BatchScheduler& scheduler, int64_t token_budget, int64_t slots)
    : scheduler_(scheduler),
      token_budget_(token_budget),
      free_slots_(slots > 0 ? slots : worker::BatchRoom::kUnbounded) {}

size_t Engine::Lane::Find(const Call* call) const {
  const auto at = std::lower_bound(calls.begin(), calls.end(), call,
                                   [](const Call* a, const Call* b) { return a->key() < b->key(); });
  return static_cast<size_t>(at - calls.begin());
}

void Engine::Join(Call* call) {
  Lane& lane = lanes_[call->lane];
  const auto at = static_cast<std::ptrdiff_t>(lane.Find(call));
  lane.calls.insert(lane.calls.begin() + at, call);
  lane.requests.insert(
      lane.requests.begin() + at,
      {.prefill_left = call->prefill_tokens, .decode_left = call->decode_tokens, .resident = false});
  tokens_left_ += call->prefill_tokens + call->decode_tokens;
  ++calls_;
}

int64_t Engine::Available() const {
  int64_t available = 0;
  for (const auto& [priority, lane] : lanes_) {
    for (const worker::BatchRequest& request : lane.requests) {
      available += request.available();
      if (available >= token_budget_) return token_budget_;
    }
  }
  return available;
}

bool Engine::Start() {
  if (calls_ == 0) return false;
  batch_.clear();
  int64_t left = token_budget_;
  for (auto& [priority, lane] : lanes_) {
    if (left == 0) break;
    scheduler_.Form(lane.requests, {.token_budget = left, .free_slots = free_slots_}, chunks_);
    for (const worker::Chunk& chunk : chunks_) {
      const auto which = static_cast<size_t>(chunk.which);
      if (!lane.requests[which].resident) {
        lane.requests[which].resident = true;
        if (free_slots_ != worker::BatchRoom::kUnbounded) --free_slots_;
      }
      batch_.emplace_back(lane.calls[which], chunk.rows);
      left -= chunk.rows;
    }
  }
  batch_tokens_ = token_budget_ - left;
  if (left > 0 && batch_tokens_ < Available()) ++short_batches_;
  return busy();
}

void Engine::Finish(std::vector<Call*>& ended) {
  for (const auto& [call, rows] : batch_) {
    Lane& lane = lanes_[call->lane];
    const size_t at = lane.Find(call);
    worker::BatchRequest& request = lane.requests[at];
    (request.prefill_left > 0 ? request.prefill_left : request.decode_left) -= rows;
    if (request.prefill_left > 0 || request.decode_left > 0) continue;
    lane.calls.erase(lane.calls.begin() + static_cast<std::ptrdiff_t>(at));
    lane.requests.erase(lane.requests.begin() + static_cast<std::ptrdiff_t>(at));
    --calls_;
    if (free_slots_ != worker::BatchRoom::kUnbounded) ++free_slots_;
    ended.push_back(call);
  }
  tokens_left_ -= batch_tokens_;
  batch_tokens_ = 0;
}

}  // namespace bfio::sim
