#include "router/core/admission/memory_rule.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace bfio::core {
namespace {

// Of the newest request in the mean of those that were begun.
constexpr double kAreaWeight = 1.0 / 64;

// Token-rounds a request takes.
double Area(const AdmissionRequest& request) {
  const auto s = static_cast<double>(request.prompt), o = static_cast<double>(request.output);
  return (o + 1) * s + o * (o + 1) / 2;
}

}  // namespace

MemoryRule::MemoryRule(const AdmissionOptions& options, const MemoryRuleOptions& rule)
    : options_(options), rule_(rule), credit_(static_cast<double>(options.memory)) {}

MemoryRule::Place MemoryRule::PlaceOf(const Entry& entry) const {
  const bool shortest = rule_.order == MemoryRuleOptions::Order::kShortestFirst;
  return {shortest ? entry.request.output : 0, entry.arrival, entry.request.id};
}

void MemoryRule::OnArrival(const AdmissionRequest& request) {
  const Entry& entry = requests_.emplace(request.id, Entry{request, arrivals_++, 0, {}}).first->second;
  waiting_.insert(PlaceOf(entry));
}

void MemoryRule::Decide(int64_t round, AdmissionRound& out) {
  out.Clear();
  profile_.Advance(round);
  Extend(round);
  EvictOverflow(round, out);
  // A round's worth is the most that is saved up: what was not used is gone, as the memory was.
  const auto memory = static_cast<double>(options_.memory);
  credit_ = std::min(memory, credit_ + memory * static_cast<double>(round - round_));
  round_ = round;
  // What has just been thrown out would be the first to come back.
  if (!out.evict.empty()) return;
  while (!waiting_.empty()) {
    Entry& entry = requests_.at(std::get<RequestId>(*waiting_.begin()));
    const AdmissionRequest& request = entry.request;
    entry.line = {request.prompt - round, options_.counts_first_round ? round : round + 1,
                  round + request.output + rule_.margin};
    const int64_t peak = profile_.PeakWith(entry.line);
    if (peak > options_.memory) break;
    // Where half the memory stays free to the end, nothing queues for it.
    if (rule_.paced && credit_ <= 0 && 2 * peak > options_.memory) break;
    entry.began = round;
    Charge(Area(request));
    profile_.Add(entry.line);
    ends_.emplace(entry.line.to, request.id);
    began_.emplace(round, request.id);
    out.begin.push_back(request.id);
    waiting_.erase(waiting_.begin());
  }
}

void MemoryRule::Charge(double area) {
  mean_area_ = mean_area_ == 0 ? area : mean_area_ + kAreaWeight * (area - mean_area_);
  credit_ -= mean_area_;
}

void MemoryRule::Extend(int64_t round) {
  while (!ends_.empty() && ends_.begin()->first <= round) {
    const RequestId id = ends_.begin()->second;
    ends_.erase(ends_.begin());
    Entry& entry = requests_.at(id);
    // What it was counted as ends at `round`, or has ended.
    const int64_t further = std::max<int64_t>(1, (round - entry.began) / 4);
    const KvLine rest{entry.line.size, entry.line.to + 1, round + further};
    profile_.Add(rest);
    entry.line.to = rest.to;
    ends_.emplace(rest.to, id);
  }
}

void MemoryRule::EvictOverflow(int64_t round, AdmissionRound& out) {
  while (!began_.empty() && profile_.At(round) > options_.memory) {
    const RequestId id = std::prev(began_.end())->second;
    Entry& entry = requests_.at(id);
    began_.erase(std::prev(began_.end()));
    ends_.erase({entry.line.to, id});
    profile_.Remove(entry.line);
    waiting_.insert(PlaceOf(entry));
    out.evict.push_back(id);
  }
}

void MemoryRule::OnEnd(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  const Entry& entry = it->second;
  // What ends sooner than believed gives its memory back.
  const int64_t over = round_ + 1;
  if (entry.line.to > over) profile_.Remove({entry.line.size, over + 1, entry.line.to});
  ends_.erase({entry.line.to, id});
  began_.erase({entry.began, id});
  requests_.erase(it);
}

}  // namespace bfio::core
