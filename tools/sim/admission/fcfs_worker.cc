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

  // Prompt tokens read, and tokens made.
  int64_t held() const { return prompt - left.prefill_left + output - left.decode_left; }
};

class FcfsWorker {
 public:
  FcfsWorker(absl::Span<const RequestType> types, const FcfsOptions& options)
      : types_(types.begin(), types.end()),
        options_(options),
        usable_(static_cast<int64_t>((1 - options.watermark) * static_cast<double>(options.memory))),
        scheduler_(*worker::BatchScheduler::Create(chunked() ? "sarathi" : "vllm_v0")),
        rng_(options.run.seed) {
    for (size_t j = 0; j < types_.size(); ++j) next_.push_back(Next(j, 0));
  }

  FcfsRun Run() {
    while (now_ < options_.run.horizon) {
      Arrivals();
      if (running_.empty() && waiting_.empty()) {
        now_ = *std::min_element(next_.begin(), next_.end());
        continue;
      }
      Begin();
      const double tokens = Batch();
      now_ += options_.run.time(tokens);
      ++run_.iterations;
      run_.peak_batch = std::max(run_.peak_batch, static_cast<int64_t>(tokens));
      End();
      run_.peak_resident = std::max(run_.peak_resident, held_);
    }
    run_.tokens_per_s = static_cast<double>(done_tokens_) / now_;
    if (run_.completed > 0) run_.mean_latency = latency_ / static_cast<double>(run_.completed);
    if (firsts_ > 0) run_.mean_ttft = ttft_ / static_cast<double>(firsts_);
    return std::move(run_);
  }

 private:
  double Next(size_t j, double after) {
    return types_[j].rate > 0 ? after + rng_.Exponential() / types_[j].rate
                              : std::numeric_limits<double>::infinity();
  }

  // The types' arrivals as one stream by time.
  void Arrivals() {
    for (;;) {
      const auto j = static_cast<size_t>(std::min_element(next_.begin(), next_.end()) - next_.begin());
      if (next_[j] > now_) return;
      waiting_.push_back({next_[j], types_[j].prompt, types_[j].output});
      next_[j] = Next(j, next_[j]);
    }
  }

  bool chunked() const { return options_.batching == Batching::kChunked; }

  void Begin() {
    int64_t spoken_for = 0;
    for (const FcfsRequest& request : running_) spoken_for += request.left.prefill_left;
    const auto full = [&] {
      return options_.most_running > 0 && static_cast<int64_t>(running_.size()) >= options_.most_running;
    };
    while (!waiting_.empty() && !full() &&
           (held_ + spoken_for + waiting_.front().prompt <= usable_ || running_.empty())) {
      spoken_for += waiting_.front().prompt;
      running_.push_back(waiting_.front());
      waiting_.pop_front();
    }
  }

  // The newest free memory for a token of each that decodes.
  void FreeMemory(int64_t decoding) {
    while (held_ + decoding > options_.memory && running_.size() > 1) {
      FcfsRequest& newest = running_.back();
      decoding -= newest.left.decoding();
      held_ -= newest.held();
      newest.left = {.prefill_left = newest.prompt, .decode_left = newest.output};
      waiting_.push_front(newest);
      running_.pop_back();
      ++run_.evictions;
    }
  }

  // Computes the next batch; tokens that it reads, and that its decodes hold. Reading the last token of a
  // prompt gives the first token's place: stage 0 is over.
  double Batch() {
    int64_t decoding = 0, first_unread = 0;
    for (const FcfsRequest& request : running_) {
      decoding += request.left.decoding();
      if (first_unread == 0) first_unread = request.left.prefill_left;
    }
    if (chunked() || first_unread == 0) FreeMemory(decoding);
    // The budget keeps no decode out of a batch; of whole prompts the first is read however long it is.
    worker::BatchRoom room = {.token_budget = worker::BatchRoom::kUnbounded};
    room.prefill_tokens = chunked() ? std::max<int64_t>(0, options_.token_budget - decoding)
                                    : std::max(options_.token_budget, first_unread);
    left_.clear();
    for (const FcfsRequest& request : running_) left_.push_back(request.left);
    scheduler_.Form(left_, room, batch_);
    double tokens = 0;
    for (const worker::Chunk& chunk : batch_) {
      FcfsRequest& request = running_[chunk.which];
      const bool decodes = request.left.decoding();
      (decodes ? request.left.decode_left : request.left.prefill_left) -= chunk.rows;
      held_ += chunk.rows;
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
      done_tokens_ += request.output + 1;
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
  FcfsRun run_;
  int64_t held_ = 0, done_tokens_ = 0, firsts_ = 0;
  double now_ = 0, latency_ = 0, ttft_ = 0;
};

}  // namespace

FcfsRun RunFcfs(absl::Span<const RequestType> types, const FcfsOptions& options) {
  return FcfsWorker(types, options).Run();
}

}  // namespace bfio::sim
