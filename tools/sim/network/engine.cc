#include "tools/sim/network/engine.h"

#include <algorithm>
#include <utility>

namespace bfio::sim {

Engine::Engine(const worker::BatchScheduler& scheduler, int64_t token_budget, int64_t slots,
               std::function<void(const LaneBatch&)> watch)
    : scheduler_(scheduler),
      watch_(std::move(watch)),
      token_budget_(token_budget),
      free_slots_(slots > 0 ? slots : worker::BatchCapacity::kUnbounded) {}

size_t Engine::Lane::Find(const Call* call) const {
  const auto at = std::lower_bound(calls.begin(), calls.end(), call,
                                   [](const Call* a, const Call* b) { return a->key() < b->key(); });
  return static_cast<size_t>(at - calls.begin());
}

void Engine::Join(Call* call) {
  Lane& lane = lanes_[call->lane];
  const size_t at = lane.Find(call);
  const auto offset = static_cast<std::ptrdiff_t>(at);
  if (at < lane.calls.size()) {
    for (Part& part : batch_) {
      if (part.lane == &lane && part.at >= at) ++part.at;
    }
  }
  lane.calls.insert(lane.calls.begin() + offset, call);
  lane.requests.insert(
      lane.requests.begin() + offset,
      {.prefill_left = call->prefill_tokens, .decode_left = call->decode_tokens, .resident = false});
  tokens_left_ += call->prefill_tokens + call->decode_tokens;
  ++calls_;
}

int64_t Engine::CountTokensLeft() const {
  int64_t tokens = 0;
  for (const auto& [priority, lane] : lanes_) {
    for (const worker::BatchRequest& request : lane.requests)
      tokens += request.prefill_left + request.decode_left;
  }
  return tokens;
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
    const worker::BatchCapacity capacity{.token_budget = left, .free_slots = free_slots_};
    scheduler_.Form(lane.requests, capacity, chunks_);
    if (watch_ && !lane.calls.empty()) watch_({lane.calls, lane.requests, capacity, chunks_});
    for (const worker::Chunk& chunk : chunks_) {
      const auto which = static_cast<size_t>(chunk.which);
      if (!lane.requests[which].resident) {
        lane.requests[which].resident = true;
        if (free_slots_ != worker::BatchCapacity::kUnbounded) --free_slots_;
      }
      batch_.push_back({&lane, which, chunk.rows});
      left -= chunk.rows;
    }
  }
  batch_tokens_ = token_budget_ - left;
  if (left > 0 && batch_tokens_ < Available()) ++short_batches_;
  return busy();
}

void Engine::Finish(std::vector<Call*>& ended) {
  gone_.clear();
  for (const Part& part : batch_) {
    worker::BatchRequest& request = part.lane->requests[part.at];
    (request.prefill_left > 0 ? request.prefill_left : request.decode_left) -= part.rows;
    if (request.prefill_left > 0 || request.decode_left > 0) continue;
    ended.push_back(part.lane->calls[part.at]);
    gone_.push_back(part);
  }
  // From the back, so that the indices of the others stay valid.
  std::sort(gone_.begin(), gone_.end(), [](const Part& a, const Part& b) { return a.at > b.at; });
  for (const Part& part : gone_) {
    const auto offset = static_cast<std::ptrdiff_t>(part.at);
    part.lane->calls.erase(part.lane->calls.begin() + offset);
    part.lane->requests.erase(part.lane->requests.begin() + offset);
    --calls_;
    if (free_slots_ != worker::BatchCapacity::kUnbounded) ++free_slots_;
  }
  batch_.clear();
  tokens_left_ -= batch_tokens_;
  batch_tokens_ = 0;
}

}  // namespace bfio::sim
