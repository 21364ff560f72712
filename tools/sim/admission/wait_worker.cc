#include "tools/sim/admission/wait_worker.h"

#include <algorithm>
#include <deque>
#include <limits>

#include "common/base/rng.h"

namespace bfio::sim {
namespace {

struct WaitingRequest {
  double arrived = 0;
  int64_t prompt = 0, output = 0;
};

// A row of stages; requests move along it in the order they came.
struct Line {
  std::vector<std::deque<WaitingRequest>> stages;
};

class WaitWorker {
 public:
  WaitWorker(absl::Span<const RequestType> types, const WaitOptions& options)
      : types_(types.begin(), types.end()), options_(options), rng_(options.seed) {
    for (size_t j = 0; j < types_.size(); ++j) next_.push_back(Next(j, 0));
  }

  // `arrive` takes a request of a type. `batch` returns stages' shares of the next batch: it calls Take for
  // each.
  template <typename Arrive, typename Batch>
  WaitRun Run(Arrive arrive, Batch batch) {
    double& now = now_;
    while (now < options_.horizon) {
      Arrivals(now, arrive);
      tokens_ = 0;
      batch();
      if (moved_.empty()) {
        // Nothing is worth running: the next arrival may change that.
        now = *std::min_element(next_.begin(), next_.end());
        continue;
      }
      now += options_.time(static_cast<double>(tokens_));
      ++run_.iterations;
      run_.peak_batch = std::max(run_.peak_batch, tokens_);
      Finish(now);
      run_.peak_resident = std::max(run_.peak_resident, resident_);
    }
    run_.tokens_per_s = static_cast<double>(tokens_made_) / now;
    if (run_.completed > 0) run_.mean_latency = latency_ / static_cast<double>(run_.completed);
    if (begun_ > 0) run_.mean_ttft = ttft_ / static_cast<double>(begun_);
    return std::move(run_);
  }

  // Up to `most` of a stage's requests into the batch; they go on into `to` (null: into the next stage of
  // `line`).
  void Take(Line& line, size_t stage, int64_t most, Line* to = nullptr) {
    std::deque<WaitingRequest>& from = line.stages[stage];
    for (int64_t i = 0; i < most && !from.empty(); ++i) {
      const WaitingRequest request = from.front();
      from.pop_front();
      moved_.push_back({request, stage, &line, to});
    }
  }

  // The stage number of a line's first stage, where lines are segments.
  void SetFirstStage(const Line* line, int64_t stage) { first_stage_.push_back({line, stage}); }

  double now() const { return now_; }

 private:
  struct Move {
    WaitingRequest request;
    size_t stage;
    Line* line;
    Line* to;
  };

  int64_t StageOf(const Move& move) const {
    for (const auto& [line, first] : first_stage_) {
      if (line == move.line) return first + static_cast<int64_t>(move.stage);
    }
    return static_cast<int64_t>(move.stage);
  }

  double Next(size_t j, double after) {
    if (types_[j].rate <= 0) return std::numeric_limits<double>::infinity();
    const double rate = types_[j].rate * options_.most_intensity;
    double at = after + rng_.Exponential() / rate;
    // Thinned: of the arrivals at the highest rate, the share that the time's intensity leaves.
    while (options_.intensity && at < options_.horizon &&
           rng_.Uniform() * options_.most_intensity >= options_.intensity(at))
      at += rng_.Exponential() / rate;
    return at;
  }

  template <typename Arrive>
  void Arrivals(double now, Arrive arrive) {
    for (size_t j = 0; j < types_.size(); ++j) {
      for (; next_[j] <= now; next_[j] = Next(j, next_[j]))
        arrive(j, WaitingRequest{next_[j], types_[j].prompt, types_[j].output});
    }
  }

 public:
  // Of a request at stage k: l + k. Called for each of a batch, by `batch`'s end.
  void Weigh() {
    for (const Move& move : moved_) tokens_ += move.request.prompt + StageOf(move);
  }

 private:
  void Finish(double now) {
    for (const Move& move : moved_) {
      const int64_t stage = StageOf(move);
      ++tokens_made_;
      if (stage == 0) {
        ttft_ += now - move.request.arrived;
        ++begun_;
        resident_ += move.request.prompt;
      } else {
        ++resident_;
      }
      if (stage == move.request.output) {
        latency_ += now - move.request.arrived;
        ++run_.completed;
        resident_ -= move.request.prompt + stage;
        continue;
      }
      if (move.to != nullptr) {
        move.to->stages[0].push_back(move.request);
      } else {
        move.line->stages[move.stage + 1].push_back(move.request);
      }
    }
    moved_.clear();
  }

  const std::vector<RequestType> types_;
  const WaitOptions options_;
  Rng rng_;
  std::vector<double> next_;
  std::vector<Move> moved_;
  std::vector<std::pair<const Line*, int64_t>> first_stage_;
  WaitRun run_;
  int64_t tokens_ = 0, tokens_made_ = 0, resident_ = 0, begun_ = 0;
  double now_ = 0, latency_ = 0, ttft_ = 0;
};

void AddMeans(std::vector<double>& sums, const std::vector<size_t>& now) {
  sums.resize(now.size());
  for (size_t i = 0; i < now.size(); ++i) sums[i] += static_cast<double>(now[i]);
}

WaitRun WithMeans(WaitRun run, std::vector<double> sums, int64_t looks) {
  for (double& sum : sums) sum /= static_cast<double>(std::max<int64_t>(1, looks));
  run.mean_waiting = std::move(sums);
  return run;
}

template <typename Arrived, typename Thresholds>
WaitRun RunLines(absl::Span<const RequestType> types, const WaitOptions& options, Arrived arrived,
                 Thresholds thresholds) {
  WaitWorker worker(types, options);
  std::vector<Line> lines(types.size());
  for (size_t j = 0; j < types.size(); ++j) lines[j].stages.resize(static_cast<size_t>(types[j].output) + 1);
  std::vector<double> waiting;
  int64_t looks = 0;
  WaitRun run = worker.Run(
      [&](size_t j, const WaitingRequest& request) {
        lines[j].stages[0].push_back(request);
        arrived(j, request.arrived);
      },
      [&] {
        const absl::Span<const int64_t> least = thresholds(worker.now());
        std::vector<size_t> at_entry;
        for (size_t j = 0; j < lines.size(); ++j) {
          at_entry.push_back(lines[j].stages[0].size());
          if (static_cast<int64_t>(at_entry.back()) < least[j]) continue;
          for (size_t k = 0; k < lines[j].stages.size(); ++k) worker.Take(lines[j], k, least[j]);
        }
        worker.Weigh();
        AddMeans(waiting, at_entry);
        ++looks;
      });
  return WithMeans(std::move(run), std::move(waiting), looks);
}

}  // namespace

WaitRun RunWait(absl::Span<const RequestType> types, absl::Span<const int64_t> thresholds,
                const WaitOptions& options) {
  return RunLines(
      types, options, [](size_t, double) {}, [&](double) { return thresholds; });
}

WaitRun RunTunedWait(absl::Span<const RequestType> types, WaitTuner& tuner, const WaitOptions& options) {
  return RunLines(
      types, options, [&](size_t type, double at) { tuner.OnArrival(type, at); },
      [&](double now) { return tuner.Thresholds(now); });
}

WaitRun RunNestedWait(absl::Span<const RequestType> types, const Segments& segments,
                      absl::Span<const int64_t> thresholds, const WaitOptions& options) {
  WaitWorker worker(types, options);
  std::vector<Line> lines(segments.last_stage.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    lines[i].stages.resize(static_cast<size_t>(segments.last_stage[i] - segments.first_stage(i) + 1));
    worker.SetFirstStage(&lines[i], segments.first_stage(i));
  }
  std::vector<double> waiting;
  int64_t looks = 0;
  WaitRun run =
      worker.Run([&](size_t, const WaitingRequest& request) { lines[0].stages[0].push_back(request); },
                 [&] {
                   std::vector<size_t> at_entry;
                   for (const Line& line : lines) at_entry.push_back(line.stages[0].size());
                   for (size_t i = 0; i < lines.size(); ++i) {
                     if (static_cast<int64_t>(at_entry[i]) < thresholds[i]) break;
                     const size_t last = lines[i].stages.size() - 1;
                     for (size_t k = 0; k <= last; ++k) {
                       worker.Take(lines[i], k, thresholds[i],
                                   k == last && i + 1 < lines.size() ? &lines[i + 1] : nullptr);
                     }
                   }
                   worker.Weigh();
                   AddMeans(waiting, at_entry);
                   ++looks;
                 });
  return WithMeans(std::move(run), std::move(waiting), looks);
}

}  // namespace bfio::sim
