#include "research/admission/end_pace.h"

#include <algorithm>

namespace bfio::sim {
namespace {

// Two requests are similar when the smaller total and the smaller output are at least this share of the
// other's.
constexpr double kAlike = 0.8;
// The pace is checked for windows of up to 1/kWindows of a request's length.
constexpr int64_t kWindows = 4;

bool Similar(int64_t a, int64_t b) {
  return static_cast<double>(std::min(a, b)) >= kAlike * static_cast<double>(std::max(a, b));
}

}  // namespace

double TokenSteps(int64_t prompt, int64_t output) {
  const auto s = static_cast<double>(prompt), o = static_cast<double>(output);
  return (o + 1) * s + o * (o + 1) / 2;
}

void EndPace::Set(RequestId id, int64_t last, int64_t total, int64_t output) {
  Remove(id);
  entries_.emplace(id, Entry{last, total, output});
  ends_.emplace(last, id);
}

void EndPace::Remove(RequestId id) {
  const auto it = entries_.find(id);
  if (it == entries_.end()) return;
  ends_.erase({it->second.last, id});
  entries_.erase(it);
}

bool EndPace::EndsTogether(int64_t last, int64_t prompt, int64_t output, int64_t memory, double used) const {
  const double area = TokenSteps(prompt, output) * std::min(1.0, used);
  const double rate = static_cast<double>(memory) / area;
  // Allowance for whole requests: in a sequence of r requests per step, a window of n steps has up to r n
  // rounded up.
  const double slack = 1 - std::min(rate, 1 / rate) / 2;
  const int64_t first = last - output / kWindows;
  double count = 1;
  for (auto it = ends_.lower_bound({last + 1, RequestId{}}); it != ends_.begin();) {
    --it;
    if (it->first < first) return false;
    const Entry& other = entries_.at(it->second);
    if (!Similar(output, other.output) || !Similar(prompt + output, other.total)) continue;
    ++count;
    if (count > std::max(1.0, rate * static_cast<double>(last - it->first + 1) + slack)) return true;
  }
  return false;
}

}  // namespace bfio::sim
