#include "tools/sim/admission/memory_rule.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "tools/sim/admission/lengths.h"

namespace bfio::sim {
namespace {

// Two requests are similar when the smaller total and the smaller output are at least this share of the
// other's.
constexpr double kAlike = 0.8;
// The pace is checked for windows of up to 1/kWindows of a request's length.
constexpr int64_t kWindows = 4;
// Maximum number of requests in one round that are delayed by the pace and overtaken by longer ones.
constexpr int kMostPassed = 16;

// Weight of the latest request to end in the means of actual and predicted token-rounds.
constexpr double kEndWeight = 1.0 / 64;

// Token-rounds that a request takes.
double Area(int64_t prompt, int64_t output) {
  const auto s = static_cast<double>(prompt), o = static_cast<double>(output);
  return (o + 1) * s + o * (o + 1) / 2;
}

bool Alike(int64_t a, int64_t b) {
  return static_cast<double>(std::min(a, b)) >= kAlike * static_cast<double>(std::max(a, b));
}

}  // namespace

MemoryRule::MemoryRule(const AdmissionOptions& options, const MemoryRuleOptions& rule)
    : options_(options), rule_(rule) {}

MemoryRule::Place MemoryRule::PlaceOf(const Entry& entry) const {
  const bool shortest = rule_.order == MemoryRuleOptions::Order::kShortestFirst;
  return {shortest ? entry.left : 0, entry.arrival, entry.request.id};
}

void MemoryRule::OnArrival(const AdmissionRequest& request) {
  const Entry& entry =
      requests_.emplace(request.id, Entry{request, arrivals_++, 0, Left(request, 0), 0, {}}).first->second;
  waiting_.insert(PlaceOf(entry));
}

int64_t MemoryRule::Left(const AdmissionRequest& request, int64_t made) const {
  if (options_.lengths != nullptr) return options_.lengths->Left(request, made);
  const int64_t left = made < request.output ? request.output - made : std::max<int64_t>(1, made / 4);
  return request.most > made ? std::min(left, request.most - made) : left;
}

void MemoryRule::Decide(int64_t round, AdmissionRound& out) {
  out.Clear();
  profile_.Advance(round);
  Extend(round);
  PreemptOverflow(round, out);
  round_ = round;
  // The requests that were just preempted would be started again at once.
  if (!out.preempt.empty()) return;
  int passed = 0;
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    Entry& entry = requests_.at(std::get<RequestId>(*next));
    const RequestId id = entry.request.id;
    entry.line = {entry.request.prompt + entry.made - round, options_.counts_first_round ? round : round + 1,
                  round + entry.left + rule_.margin};
    const int64_t peak = profile_.PeakWith(entry.line);
    // A request whose prediction exceeds even an empty memory starts when the memory is empty.
    if (peak > options_.memory && !(began_.empty() && profile_.Peak(round, entry.line.to) == 0)) break;
    // While half the memory stays free until its end, the pace does not apply.
    if (rule_.paced && 2 * peak > options_.memory && EndsInAWave(entry, entry.line.to)) {
      if (++passed > kMostPassed) break;
      ++next;
      continue;
    }
    entry.began = round;
    profile_.Add(entry.line);
    ends_.emplace(entry.line.to, id);
    began_.emplace(round, id);
    out.begin.push_back(id);
    next = waiting_.erase(next);
  }
}

bool MemoryRule::EndsInAWave(const Entry& entry, int64_t end) const {
  const int64_t prompt = entry.request.prompt + entry.made;
  const double area = Area(prompt, entry.left) * std::min(1.0, taken_ / believed_);
  const double rate = static_cast<double>(options_.memory) / area;
  // Allowance for whole requests: in a sequence of r requests per round, a window of n rounds has up to r n
  // rounded up.
  const double slack = 1 - std::min(rate, 1 / rate) / 2;
  const int64_t first = end - entry.left / kWindows;
  double count = 1;
  for (auto it = ends_.lower_bound({end + 1, RequestId{}}); it != ends_.begin();) {
    --it;
    if (it->first < first) return false;
    const Entry& other = requests_.at(it->second);
    if (!Alike(entry.left, other.left) ||
        !Alike(prompt + entry.left, other.request.prompt + other.made + other.left))
      continue;
    ++count;
    if (count > std::max(1.0, rate * static_cast<double>(end - it->first + 1) + slack)) return true;
  }
  return false;
}

void MemoryRule::Extend(int64_t round) {
  while (!ends_.empty() && ends_.begin()->first <= round) {
    const RequestId id = ends_.begin()->second;
    ends_.erase(ends_.begin());
    Entry& entry = requests_.at(id);
    // The predicted line of the request ends at `round`, or has ended.
    const int64_t further = std::max<int64_t>(1, Left(entry.request, entry.made + round - entry.began));
    const KvLine rest{entry.line.size, entry.line.to + 1, round + further};
    profile_.Add(rest);
    entry.line.to = rest.to;
    ends_.emplace(rest.to, id);
  }
}

void MemoryRule::PreemptOverflow(int64_t round, AdmissionRound& out) {
  while (began_.size() > 1 && profile_.At(round) > options_.memory) {
    const auto youngest = std::prev(began_.end());
    const RequestId id = youngest->second;
    Entry& entry = requests_.at(id);
    began_.erase(youngest);
    ends_.erase({entry.line.to, id});
    profile_.Remove(entry.line);
    entry.made += round - entry.began;
    entry.left = std::max<int64_t>(1, Left(entry.request, entry.made));
    waiting_.insert(PlaceOf(entry));
    out.preempt.push_back(id);
  }
}

void MemoryRule::OnEnd(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  const Entry& entry = it->second;
  // A request that ends earlier than predicted releases the memory reserved for the rest.
  const int64_t over = round_ + 1;
  const int64_t prompt = entry.request.prompt + entry.made;
  taken_ += kEndWeight * (Area(prompt, over - entry.began) - taken_);
  believed_ += kEndWeight * (Area(prompt, entry.left) - believed_);
  if (options_.lengths != nullptr) options_.lengths->Ended(entry.request, entry.made + over - entry.began);
  if (entry.line.to > over) profile_.Remove({entry.line.size, over + 1, entry.line.to});
  ends_.erase({entry.line.to, id});
  began_.erase({entry.began, id});
  requests_.erase(it);
}

}  // namespace bfio::sim
