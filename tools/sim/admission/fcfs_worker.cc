#include "tools/sim/admission/fcfs_worker.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <vector>

#include "common/base/rng.h"
#include "worker/scheduler/batch_scheduler.h"

namespace bfio::sim {
namespace {

struct FcfsRequest {
  double arrived = 0;
  int64_t prompt = 0, output = 0;
  worker::BatchRequest left = {.prefill_left = prompt, .decode_left = output};
  bool first_seen = false;

  // Prompt tokens computed, plus tokens generated.
  int64_t held() const { return prompt - left.prefill_left + output - left.decode_left; }
  // Generated tokens, of which a computed prompt is one.
  int64_t made() const { return left.prefill_left > 0 ? 0 : 1 + output - left.decode_left; }
};

class FcfsWorker {
 public:
  FcfsWorker(absl::Span<const RequestType> types, const FcfsOptions& options)
      : types_(types.begin(), types.end()),
        options_(options),
        usable_(static_cast<int64_t>((1 - options.run.watermark) * static_cast<double>(options.run.memory))),
        scheduler_(*worker::BatchScheduler::Create(chunked() ? "sarathi" : "vllm_v0")),
        rng_(options.run.seed) {
    for (size_t j = 0; j < types_.size(); ++j) next_.push_back(Next(j, 0));
  }

  WaitRun Run() {
    while (now_ < options_.run.horizon) {
      Arrivals();
      if (running_.empty() && waiting_.empty()) {
        now_ = *std::min_element(next_.begin(), next_.end());
        continue;
      }
      FreeMemory();
      Begin();
      const double tokens = Batch();
      now_ += options_.run.time(tokens);
      ++run_.iterations;
      run_.peak_batch = std::max(run_.peak_batch, static_cast<int64_t>(tokens));
      End();
      run_.peak_resident = std::max(run_.peak_resident, held_);
    }
    run_.tokens_per_s = static_cast<double>(tokens_made_) / now_;
    run_.offered_tokens_per_s = static_cast<double>(tokens_arrived_) / now_;
    if (run_.completed > 0) run_.mean_latency = latency_ / static_cast<double>(run_.completed);
    if (firsts_ > 0) run_.mean_ttft = ttft_ / static_cast<double>(firsts_);
    return std::move(run_);
  }

 private:
  double Next(size_t j, double after) {
    return types_[j].rate > 0 ? after + rng_.Exponential() / types_[j].rate
                              : std::numeric_limits<double>::infinity();
  }

  // Merges the arrivals of all types into one stream ordered by time.
  void Arrivals() {
    for (;;) {
      const auto j = static_cast<size_t>(std::min_element(next_.begin(), next_.end()) - next_.begin());
      if (next_[j] > now_) return;
      waiting_.push_back({next_[j], types_[j].prompt, types_[j].output});
      tokens_arrived_ += types_[j].output + 1;
      next_[j] = Next(j, next_[j]);
    }
  }

  bool chunked() const { return options_.batching == Batching::kChunked; }

  // Prompt tokens still to be computed, and one token for each decoding request.
  int64_t Growth() const {
    int64_t tokens = 0;
    for (const FcfsRequest& request : running_)
      tokens += request.left.prefill_left + static_cast<int64_t>(request.left.decoding());
    return tokens;
  }

  void Begin() {
    int64_t after = held_ + Growth();
    const auto full = [&] {
      return options_.most_running > 0 && static_cast<int64_t>(running_.size()) >= options_.most_running;
    };
    while (!waiting_.empty() && !full() && (after + waiting_.front().prompt <= usable_ || running_.empty())) {
      after += waiting_.front().prompt;
      running_.push_back(waiting_.front());
      waiting_.pop_front();
    }
  }

  // Evicts the newest requests until prompts that have begun and one token of each decoding request fit.
  void FreeMemory() {
    int64_t growth = Growth();
    while (held_ + growth > options_.run.memory && running_.size() > 1) {
      FcfsRequest& newest = running_.back();
      growth -= newest.left.prefill_left + static_cast<int64_t>(newest.left.decoding());
      held_ -= newest.held();
      tokens_made_ -= newest.made();
      newest.left = {.prefill_left = newest.prompt, .decode_left = newest.output};
      waiting_.push_front(newest);
      running_.pop_back();
      ++run_.evictions;
    }
  }

  // Computes the next batch. Returns its cost in tokens: prompt tokens computed, plus tokens held by its
  // decodes. The request leaves stage 0 when the last token of its prompt is computed.
  double Batch() {
    int64_t decoding = 0, first_unread = 0;
    for (const FcfsRequest& request : running_) {
      decoding += request.left.decoding();
      if (first_unread == 0) first_unread = request.left.prefill_left;
    }
    // The budget never excludes a decode. With whole prompts the first is computed however long it is.
    worker::BatchCapacity capacity = {.token_budget = worker::BatchCapacity::kUnbounded};
    capacity.prefill_tokens = chunked() ? std::max<int64_t>(0, options_.token_budget - decoding)
                                        : std::max(options_.token_budget, first_unread);
    left_.clear();
    for (const FcfsRequest& request : running_) left_.push_back(request.left);
    scheduler_.Form(left_, capacity, batch_);
    double tokens = 0;
    for (const worker::Chunk& chunk : batch_) {
      FcfsRequest& request = running_[chunk.which];
      const bool decodes = request.left.decoding();
      tokens_made_ -= request.made();
      (decodes ? request.left.decode_left : request.left.prefill_left) -= chunk.rows;
      held_ += chunk.rows;
      tokens_made_ += request.made();
      tokens += static_cast<double>(decodes ? request.held() : chunk.rows);
      if (!decodes && request.left.prefill_left == 0) just_read_.push_back(&request);
    }
    return tokens;
  }

  void End() {
    for (FcfsRequest* request : just_read_) {
      if (request->first_seen) continue;
      request->first_seen = true;
      ttft_ += now_ - request->arrived;
      ++firsts_;
    }
    just_read_.clear();
    std::erase_if(running_, [&](const FcfsRequest& request) {
      if (request.left.decode_left > 0) return false;
      latency_ += now_ - request.arrived;
      held_ -= request.held();
      ++run_.completed;
      return true;
    });
  }

  const std::vector<RequestType> types_;
  const FcfsOptions options_;
  const int64_t usable_;
  worker::BatchScheduler scheduler_;
  Rng rng_;
  std::vector<double> next_;
  std::deque<FcfsRequest> waiting_, running_;
  // Scratch.
  std::vector<worker::BatchRequest> left_;
  std::vector<worker::Chunk> batch_;
  std::vector<FcfsRequest*> just_read_;
  WaitRun run_;
  int64_t held_ = 0, tokens_made_ = 0, tokens_arrived_ = 0, firsts_ = 0;
  double now_ = 0, latency_ = 0, ttft_ = 0;
};

}  // namespace

WaitRun RunFcfs(absl::Span<const RequestType> types, const FcfsOptions& options) {
  return FcfsWorker(types, options).Run();
}

}  // namespace bfio::sim
