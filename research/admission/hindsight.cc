#include "research/admission/hindsight.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace bfio::sim {
namespace {

class Search {
 public:
  Search(const std::vector<KvArrival>& arrivals, const AdmissionOptions& options, int64_t most_steps)
      : arrivals_(arrivals), options_(options), steps_left_(most_steps), order_(arrivals.size()) {
    // Identical requests are sorted next to each other. As they are interchangeable, the search only
    // considers ascending starts.
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return Key(a) < Key(b); });
    starts_.resize(arrivals.size());
  }

  std::optional<Hindsight> Run() {
    OneAfterTheOther();
    Place(0, 0);
    if (steps_left_ < 0) return std::nullopt;
    return best_;
  }

 private:
  std::tuple<int64_t, int64_t, double> Key(size_t i) const {
    return {arrivals_[i].output, arrivals_[i].prompt, arrivals_[i].at};
  }
  int64_t Arrived(size_t i) const { return static_cast<int64_t>(arrivals_[i].at); }
  int64_t First() const { return options_.counts_first_round ? 0 : 1; }
  int64_t& Used(int64_t t) {
    if (t >= static_cast<int64_t>(used_.size())) used_.resize(static_cast<size_t>(2 * t + 16));
    return used_[static_cast<size_t>(t)];
  }

  // A schedule that is always feasible, as the first upper bound of the search.
  void OneAfterTheOther() {
    best_.began.resize(arrivals_.size());
    int64_t now = 0;
    for (const size_t i : order_) {
      now = std::max(now, Arrived(i));
      best_.began[i] = now;
      now += arrivals_[i].output + 1;
      best_.total_latency += now - 1 - Arrived(i);
    }
  }

  // The earliest round from `from` on at which enough memory is free; placing more requests never makes it
  // earlier.
  int64_t EarliestFrom(size_t i, int64_t from) {
    for (int64_t start = from;; ++start) {
      int64_t t = First();
      while (t <= arrivals_[i].output && Used(start + t) + arrivals_[i].prompt + t <= options_.memory) ++t;
      if (t > arrivals_[i].output) return start;
    }
  }
  void Change(size_t i, int64_t start, int sign) {
    for (int64_t t = First(); t <= arrivals_[i].output; ++t)
      Used(start + t) += sign * (arrivals_[i].prompt + t);
  }

  void Place(size_t k, int64_t total) {
    if (--steps_left_ < 0) return;
    if (k == order_.size()) {
      if (total < best_.total_latency) {
        best_.total_latency = total;
        for (size_t j = 0; j < order_.size(); ++j) best_.began[order_[j]] = starts_[j];
      }
      return;
    }
    const auto first = [&](size_t j) {
      const bool follows = j > 0 && Key(order_[j]) == Key(order_[j - 1]);
      return std::max(Arrived(order_[j]), follows && j <= k ? starts_[j - 1] : 0);
    };
    int64_t rest = 0;
    for (size_t j = k + 1; j < order_.size(); ++j)
      rest += EarliestFrom(order_[j], first(j)) + arrivals_[order_[j]].output - Arrived(order_[j]);
    const size_t i = order_[k];
    for (int64_t start = first(k); steps_left_ >= 0; ++start) {
      start = EarliestFrom(i, start);
      const int64_t with = total + start + arrivals_[i].output - Arrived(i);
      if (with + rest >= best_.total_latency) return;
      starts_[k] = start;
      Change(i, start, 1);
      Place(k + 1, with);
      Change(i, start, -1);
    }
  }

  const std::vector<KvArrival>& arrivals_;
  const AdmissionOptions& options_;
  int64_t steps_left_;
  std::vector<size_t> order_;
  std::vector<int64_t> starts_, used_;
  Hindsight best_;
};

// Breaks a sum into several lines, because readers of LP files have short line buffers.
void AppendSum(std::string& lp, const std::vector<std::string>& terms) {
  constexpr size_t kTermsOfALine = 8;
  for (size_t k = 0; k < terms.size(); ++k) {
    absl::StrAppend(&lp, k % kTermsOfALine == 0 ? "\n " : " ", terms[k]);
  }
}

}  // namespace

std::optional<Hindsight> HindsightOptimum(const std::vector<KvArrival>& arrivals,
                                          const AdmissionOptions& options, int64_t most_steps) {
  return Search(arrivals, options, most_steps).Run();
}

std::optional<int64_t> ScheduleLatency(const std::vector<KvArrival>& arrivals,
                                       const AdmissionOptions& options, const std::vector<int64_t>& began) {
  std::vector<int64_t> used;
  int64_t total = 0;
  for (size_t i = 0; i < arrivals.size(); ++i) {
    const auto arrived = static_cast<int64_t>(arrivals[i].at);
    if (began[i] < arrived) return std::nullopt;
    const int64_t end = began[i] + arrivals[i].output;
    total += end - arrived;
    used.resize(std::max(used.size(), static_cast<size_t>(end) + 1));
    for (int64_t t = began[i] + (options.counts_first_round ? 0 : 1); t <= end; ++t) {
      int64_t& sum = used[static_cast<size_t>(t)];
      sum += arrivals[i].prompt + t - began[i];
      if (sum > options.memory) return std::nullopt;
    }
  }
  return total;
}

std::string HindsightLp(const std::vector<KvArrival>& arrivals, const AdmissionOptions& options,
                        int64_t horizon) {
  std::vector<std::string> objective, variables;
  std::vector<std::vector<std::string>> once(arrivals.size());
  std::vector<std::vector<std::string>> memory(static_cast<size_t>(horizon) + 1);
  for (size_t i = 0; i < arrivals.size(); ++i) {
    const auto arrived = static_cast<int64_t>(arrivals[i].at);
    for (int64_t start = arrived; start + arrivals[i].output <= horizon; ++start) {
      const std::string x = absl::StrCat("x_", i, "_", start);
      variables.push_back(x);
      objective.push_back(absl::StrCat("+ ", start + arrivals[i].output - arrived, " ", x));
      once[i].push_back(absl::StrCat("+ ", x));
      for (int64_t t = options.counts_first_round ? 0 : 1; t <= arrivals[i].output; ++t) {
        if (arrivals[i].prompt + t == 0) continue;
        memory[static_cast<size_t>(start + t)].push_back(absl::StrCat("+ ", arrivals[i].prompt + t, " ", x));
      }
    }
  }
  std::string lp = "Minimize\n obj:";
  AppendSum(lp, objective);
  absl::StrAppend(&lp, "\nSubject To");
  for (size_t i = 0; i < once.size(); ++i) {
    absl::StrAppend(&lp, "\n once_", i, ":");
    AppendSum(lp, once[i]);
    absl::StrAppend(&lp, " = 1");
  }
  for (size_t t = 0; t < memory.size(); ++t) {
    if (memory[t].empty()) continue;
    absl::StrAppend(&lp, "\n memory_", t, ":");
    AppendSum(lp, memory[t]);
    absl::StrAppend(&lp, " <= ", options.memory);
  }
  absl::StrAppend(&lp, "\nBinary");
  AppendSum(lp, variables);
  absl::StrAppend(&lp, "\nEnd\n");
  return lp;
}

int64_t HindsightHorizon(const std::vector<KvArrival>& arrivals, int64_t total_latency) {
  int64_t spare = total_latency, last = 0;
  for (const KvArrival& arrival : arrivals) spare -= arrival.output;
  // A request may use all memory that the others do not need.
  for (const KvArrival& arrival : arrivals)
    last = std::max(last, static_cast<int64_t>(arrival.at) + arrival.output + spare);
  return last;
}

}  // namespace bfio::sim
