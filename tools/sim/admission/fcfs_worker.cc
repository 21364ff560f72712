#include "tools/sim/admission/fcfs_worker.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <vector>

#include "common/base/rng.h"

namespace bfio::sim {
namespace {

struct FcfsRequest {
  double arrived = 0;
  int64_t prompt = 0, output = 0;
  // Prompt tokens read, and tokens made.
  int64_t read = 0, made = 0;
  bool first_seen = false;

  int64_t held() const { return read + made; }
};

class FcfsWorker {
 public:
  FcfsWorker(absl::Span<const core::RequestType> types, const FcfsOptions& options)
      : types_(types.begin(), types.end()),
        options_(options),
        room_(static_cast<int64_t>((1 - options.watermark) * static_cast<double>(options.memory))),
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
      const double tokens = options_.batching == Batching::kPrefillFirst ? PrefillFirst() : Chunked();
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

  void Begin() {
    int64_t spoken_for = 0;
    for (const FcfsRequest& request : running_) spoken_for += request.prompt - request.read;
    const auto full = [&] {
      return options_.most_running > 0 && static_cast<int64_t>(running_.size()) >= options_.most_running;
    };
    while (!waiting_.empty() && !full() &&
           (held_ + spoken_for + waiting_.front().prompt <= room_ || running_.empty())) {
      spoken_for += waiting_.front().prompt;
      running_.push_back(waiting_.front());
      waiting_.pop_front();
    }
  }

  // Each that has read its prompt makes a token; the newest make room where there is none. Tokens held by
  // them.
  double Decode() {
    int64_t decoding = 0;
    for (const FcfsRequest& request : running_) decoding += request.read == request.prompt;
    while (held_ + decoding > options_.memory && running_.size() > 1) {
      FcfsRequest& newest = running_.back();
      decoding -= newest.read == newest.prompt;
      held_ -= newest.held();
      newest.read = newest.made = 0;
      waiting_.push_front(newest);
      running_.pop_back();
      ++run_.evictions;
    }
    double tokens = 0;
    for (FcfsRequest& request : running_) {
      if (request.read < request.prompt) continue;
      ++request.made;
      ++held_;
      tokens += static_cast<double>(request.held());
    }
    return tokens;
  }

  // Prompt tokens, in the order of arrival, at most `budget`; whole prompts only, or pieces. Reading the last
  // gives the first token's place: stage 0 is over.
  double Prefill(int64_t budget, bool pieces) {
    double tokens = 0;
    for (FcfsRequest& request : running_) {
      const int64_t left = request.prompt - request.read;
      if (left == 0) continue;
      const int64_t piece = pieces ? std::min(left, budget) : left;
      if (piece == 0 || (piece > budget && tokens > 0)) break;
      request.read += piece;
      budget -= piece;
      held_ += piece;
      tokens += static_cast<double>(piece);
      if (request.read == request.prompt) just_read_.push_back(&request);
    }
    return tokens;
  }

  double PrefillFirst() {
    const double prompts = Prefill(options_.token_budget, false);
    return prompts > 0 ? prompts : Decode();
  }

  double Chunked() {
    int64_t decoding = 0;
    for (const FcfsRequest& request : running_) decoding += request.read == request.prompt;
    const double decoded = Decode();
    return decoded + Prefill(std::max<int64_t>(0, options_.token_budget - decoding), true);
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
      if (request.made < request.output) return false;
      latency_ += now_ - request.arrived;
      done_tokens_ += request.output + 1;
      held_ -= request.held();
      ++run_.completed;
      return true;
    });
  }

  const std::vector<core::RequestType> types_;
  const FcfsOptions options_;
  const int64_t room_;
  Rng rng_;
  std::vector<double> next_;
  std::deque<FcfsRequest> waiting_, running_;
  std::vector<FcfsRequest*> just_read_;
  FcfsRun run_;
  int64_t held_ = 0, done_tokens_ = 0, firsts_ = 0;
  double now_ = 0, latency_ = 0, ttft_ = 0;
};

}  // namespace

FcfsRun RunFcfs(absl::Span<const core::RequestType> types, const FcfsOptions& options) {
  return FcfsWorker(types, options).Run();
}

}  // namespace bfio::sim
