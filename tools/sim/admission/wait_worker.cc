#include "tools/sim/admission/wait_worker.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>

#include "common/base/rng.h"

namespace bfio::sim {
namespace {

struct WaitingRequest {
  double arrived = 0;
  size_t type = 0;
  int64_t prompt = 0, output = 0;
  // Number of requests that started before it, since it last started.
  int64_t started = 0;
  bool first_token = false;
};

// A sequence of stages from `first` on; requests advance in order of arrival, from the last stage to `next`.
struct Line {
  std::vector<std::deque<WaitingRequest>> stages;
  int64_t first = 0;
  Line* next = nullptr;
};

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

class WaitWorker {
 public:
  // `entry_of` has the line in which each type starts; `lines` has all of them. Borrowed.
  WaitWorker(absl::Span<const RequestType> types, std::vector<Line>& lines, std::vector<Line*> entry_of,
             const WaitOptions& options)
      : types_(types.begin(), types.end()),
        lines_(lines),
        entry_of_(std::move(entry_of)),
        options_(options),
        memory_(options.memory > 0 ? options.memory : kAll),
        usable_(options.memory > 0
                    ? static_cast<int64_t>((1 - options.watermark) * static_cast<double>(options.memory))
                    : kAll),
        rng_(options.seed) {
    for (size_t j = 0; j < types_.size(); ++j) next_.push_back(Next(j, 0));
  }

  // `arrived` receives the type and time of each arrival. `batch` calls Take for each line that is ready.
  template <typename Arrived, typename Batch>
  WaitRun Run(Arrived arrived, Batch batch) {
    while (now_ < options_.horizon) {
      Arrivals(arrived);
      batch();
      if (!FormBatch()) {
        // No batch is ready: the next arrival may change that.
        now_ = *std::min_element(next_.begin(), next_.end());
        continue;
      }
      int64_t tokens = 0;
      for (const Move& move : moved_) tokens += move.request.prompt + move.stage();
      now_ += options_.time(static_cast<double>(tokens));
      ++run_.iterations;
      run_.peak_batch = std::max(run_.peak_batch, tokens);
      Finish();
      run_.peak_resident = std::max(run_.peak_resident, resident_);
    }
    run_.tokens_per_s = static_cast<double>(tokens_made_) / now_;
    run_.offered_tokens_per_s = static_cast<double>(tokens_arrived_) / now_;
    if (run_.completed > 0) run_.mean_latency = latency_ / static_cast<double>(run_.completed);
    if (first_tokens_ > 0) run_.mean_ttft = ttft_ / static_cast<double>(first_tokens_);
    return std::move(run_);
  }

  // Adds up to `most` requests of each stage of the line to the next batch.
  void Take(Line& line, int64_t most) { ready_.push_back({&line, most}); }

  double now() const { return now_; }

 private:
  struct Ready {
    Line* line;
    int64_t most;
  };
  struct Move {
    WaitingRequest request;
    size_t index;
    Line* line;

    int64_t stage() const { return line->first + static_cast<int64_t>(index); }
  };

  double Next(size_t j, double after) {
    if (types_[j].rate <= 0) return std::numeric_limits<double>::infinity();
    const double rate = types_[j].rate * options_.most_intensity;
    double at = after + rng_.Exponential() / rate;
    // Thinning: arrivals at the highest rate, of which a share given by the intensity at that time is kept.
    while (options_.intensity && at < options_.horizon &&
           rng_.Uniform() * options_.most_intensity >= options_.intensity(at))
      at += rng_.Exponential() / rate;
    return at;
  }

  template <typename Arrived>
  void Arrivals(Arrived arrived) {
    for (size_t j = 0; j < types_.size(); ++j) {
      for (; next_[j] <= now_; next_[j] = Next(j, next_[j])) {
        entry_of_[j]->stages[0].push_back({next_[j], j, types_[j].prompt, types_[j].output});
        tokens_arrived_ += types_[j].output + 1;
        arrived(j, next_[j]);
      }
    }
  }

  // Moves the requests that run next to moved_, and forgets what was ready. False when there are none.
  bool FormBatch() {
    for (const Ready& ready : ready_) Advance(*ready.line, ready.most);
    if (!AllMayStart()) {
      for (Line& line : lines_) Advance(line, kAll);
    }
    Fit();
    Start();
    ready_.clear();
    return !moved_.empty();
  }

  // Takes requests that have started.
  void Advance(Line& line, int64_t most) {
    for (size_t i = line.first == 0 ? 1 : 0; i < line.stages.size(); ++i) TakeFrom(line, i, most);
  }

  void TakeFrom(Line& line, size_t index, int64_t most) {
    std::deque<WaitingRequest>& from = line.stages[index];
    for (int64_t n = 0; n < most && !from.empty(); ++n) {
      moved_.push_back({from.front(), index, &line});
      from.pop_front();
    }
  }

  // Evicts requests of the batch until its new tokens fit.
  void Fit() {
    if (resident_ <= memory_ - static_cast<int64_t>(moved_.size())) return;
    std::stable_sort(moved_.begin(), moved_.end(),
                     [](const Move& a, const Move& b) { return a.request.started < b.request.started; });
    while (moved_.size() > 1 && resident_ + static_cast<int64_t>(moved_.size()) > memory_) {
      const Move& newest = moved_.back();
      resident_ -= newest.request.prompt + newest.stage() - 1;
      tokens_made_ -= newest.stage();
      entry_of_[newest.request.type]->stages[0].push_front(newest.request);
      ++run_.evictions;
      moved_.pop_back();
    }
  }

  bool AllMayStart() const {
    int64_t after = resident_ + static_cast<int64_t>(moved_.size());
    for (const auto& [line, most] : ready_) {
      if (line->first != 0) continue;
      const std::deque<WaitingRequest>& from = line->stages[0];
      const auto starts = std::min(from.size(), static_cast<size_t>(most));
      for (size_t i = 0; i < starts; ++i) after += from[i].prompt;
    }
    return after <= usable_;
  }

  // Takes requests that start, while memory suffices; one does if nothing else is held.
  void Start() {
    int64_t after = resident_ + static_cast<int64_t>(moved_.size());
    for (const auto& [line, most] : ready_) {
      if (line->first != 0) continue;
      std::deque<WaitingRequest>& from = line->stages[0];
      for (int64_t n = 0; n < most && !from.empty(); ++n) {
        if (after > 0 && after + from.front().prompt > usable_) return;
        after += from.front().prompt;
        from.front().started = started_++;
        TakeFrom(*line, 0, 1);
      }
    }
  }

  void Finish() {
    for (Move& move : moved_) {
      const int64_t stage = move.stage();
      ++tokens_made_;
      resident_ += stage == 0 ? move.request.prompt : 1;
      if (stage == 0 && !std::exchange(move.request.first_token, true)) {
        ttft_ += now_ - move.request.arrived;
        ++first_tokens_;
      }
      if (stage == move.request.output) {
        latency_ += now_ - move.request.arrived;
        ++run_.completed;
        resident_ -= move.request.prompt + stage;
      } else if (move.index + 1 < move.line->stages.size()) {
        move.line->stages[move.index + 1].push_back(move.request);
      } else {
        move.line->next->stages[0].push_back(move.request);
      }
    }
    moved_.clear();
  }

  const std::vector<RequestType> types_;
  std::vector<Line>& lines_;
  const std::vector<Line*> entry_of_;
  const WaitOptions options_;
  const int64_t memory_, usable_;
  Rng rng_;
  std::vector<double> next_;
  std::vector<Ready> ready_;
  std::vector<Move> moved_;
  WaitRun run_;
  int64_t tokens_made_ = 0, tokens_arrived_ = 0, resident_ = 0, started_ = 0, first_tokens_ = 0;
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
  std::vector<Line> lines(types.size());
  std::vector<Line*> entry_of;
  for (size_t j = 0; j < types.size(); ++j) {
    lines[j].stages.resize(static_cast<size_t>(types[j].output) + 1);
    entry_of.push_back(&lines[j]);
  }
  WaitWorker worker(types, lines, std::move(entry_of), options);
  std::vector<double> waiting;
  int64_t looks = 0;
  WaitRun run = worker.Run(arrived, [&] {
    const absl::Span<const int64_t> least = thresholds(worker.now());
    std::vector<size_t> at_entry;
    for (size_t j = 0; j < lines.size(); ++j) {
      at_entry.push_back(lines[j].stages[0].size());
      if (static_cast<int64_t>(at_entry.back()) >= least[j]) worker.Take(lines[j], least[j]);
    }
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
  std::vector<Line> lines(segments.last_stage.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    lines[i].stages.resize(static_cast<size_t>(segments.last_stage[i] - segments.first_stage(i) + 1));
    lines[i].first = segments.first_stage(i);
    if (i > 0) lines[i - 1].next = &lines[i];
  }
  WaitWorker worker(types, lines, std::vector<Line*>(types.size(), lines.data()), options);
  std::vector<double> waiting;
  int64_t looks = 0;
  WaitRun run = worker.Run([](size_t, double) {},
                           [&] {
                             std::vector<size_t> at_entry;
                             for (const Line& line : lines) at_entry.push_back(line.stages[0].size());
                             for (size_t i = 0; i < lines.size(); ++i) {
                               if (static_cast<int64_t>(at_entry[i]) < thresholds[i]) break;
                               worker.Take(lines[i], thresholds[i]);
                             }
                             AddMeans(waiting, at_entry);
                             ++looks;
                           });
  return WithMeans(std::move(run), std::move(waiting), looks);
}

}  // namespace bfio::sim
