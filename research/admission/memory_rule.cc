#include "research/admission/memory_rule.h"

#include <algorithm>
#include <iterator>

#include "research/admission/lengths.h"

namespace bfio::sim {
namespace {

// Maximum number of requests in one round that are delayed by the pace and overtaken by longer ones.
constexpr int kMostPassed = 16;

// Weight of the latest request to end in the means of actual and predicted token-rounds.
constexpr double kEndWeight = 1.0 / 64;

}  // namespace

MemoryRule::MemoryRule(const AdmissionOptions& options, const MemoryRuleOptions& rule)
    : options_(options), rule_(rule) {}

MemoryRule::Place MemoryRule::PlaceOf(const Entry& entry) const {
  const bool shortest = rule_.order == MemoryRuleOptions::Order::kShortestFirst;
  return {shortest ? entry.left : 0, entry.arrival, entry.request.id};
}

void MemoryRule::OnArrival(const AdmissionRequest& request) {
  const Entry entry{request, arrivals_++, 0, 0, Left(request, 0), 0};
  Wait(requests_.emplace(request.id, entry).first->second);
  newcomers_.push_back(request.id);
}

void MemoryRule::Wait(const Entry& entry) {
  waiting_.insert(PlaceOf(entry));
  came_.emplace(entry.arrival, entry.request.id);
}

int64_t MemoryRule::Left(const AdmissionRequest& request, int64_t made) const {
  if (options_.lengths != nullptr) return options_.lengths->Left(request, made);
  const int64_t left = made < request.output ? request.output - made : std::max<int64_t>(1, made / 4);
  return request.most > made ? std::min(left, request.most - made) : left;
}

void MemoryRule::Decide(int64_t round, AdmissionRound& out) {
  out.Clear();
  memory_.Advance(round);
  Extend(round);
  PreemptOverflow(round, out);
  round_ = round;
  for (const RequestId id : newcomers_) requests_.at(id).came = round;
  newcomers_.clear();
  // The requests that were just preempted would be started again at once.
  if (!out.preempt.empty() || !BeginOverdue(round, out)) return;
  int passed = 0;
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    Entry& entry = requests_.at(std::get<RequestId>(*next));
    const KvCourse course = CourseOf(entry, round);
    if (!Fits(entry, course)) break;
    // While half the memory stays free until its end, the pace does not apply.
    if (rule_.paced && 2 * memory_.PeakWith(course) > options_.memory &&
        pace_.EndsTogether(course.last(), entry.prompt(), entry.left, options_.memory, taken_ / believed_)) {
      if (++passed > kMostPassed) break;
      ++next;
      continue;
    }
    next = waiting_.erase(next);
    Begin(entry, course, round, out);
  }
}

bool MemoryRule::BeginOverdue(int64_t round, AdmissionRound& out) {
  while (!came_.empty()) {
    Entry& entry = requests_.at(came_.begin()->second);
    if (round - entry.came < rule_.most) return true;
    const KvCourse course = CourseOf(entry, round);
    if (!Fits(entry, course)) return false;
    waiting_.erase(PlaceOf(entry));
    Begin(entry, course, round, out);
  }
  return true;
}

KvCourse MemoryRule::CourseOf(const Entry& entry, int64_t round) const {
  KvCourse course{round, entry.prompt(), entry.left + rule_.margin + 1};
  if (options_.counts_first_round) return course;
  return {course.begin + 1, course.prompt + 1, course.output - 1};
}

bool MemoryRule::Fits(const Entry& entry, const KvCourse& course) const {
  if (memory_.PeakWith(course) <= options_.memory) return true;
  // A request whose prediction exceeds even an empty memory starts when the memory is empty.
  return began_.empty() && memory_.Peak(memory_.now(), course.last()) == 0;
}

void MemoryRule::Begin(Entry& entry, const KvCourse& course, int64_t round, AdmissionRound& out) {
  const RequestId id = entry.request.id;
  came_.erase({entry.arrival, id});
  entry.began = round;
  memory_.Add(id, course);
  SetEnd(entry, course.last());
  began_.emplace(round, id);
  out.begin.push_back(id);
}

void MemoryRule::SetEnd(const Entry& entry, int64_t last) {
  if (rule_.paced) pace_.Set(entry.request.id, last, entry.prompt() + entry.left, entry.left);
}

void MemoryRule::Extend(int64_t round) {
  while (const auto id = memory_.EndsBefore(round + 1)) {
    const Entry& entry = requests_.at(*id);
    const int64_t further = std::max<int64_t>(1, Left(entry.request, entry.made + round - entry.began));
    memory_.Extend(*id, round + further);
    SetEnd(entry, round + further);
  }
}

void MemoryRule::PreemptOverflow(int64_t round, AdmissionRound& out) {
  while (began_.size() > 1 && memory_.At(round) > options_.memory) {
    const auto youngest = std::prev(began_.end());
    const RequestId id = youngest->second;
    Entry& entry = requests_.at(id);
    began_.erase(youngest);
    pace_.Remove(id);
    memory_.Remove(id, round);
    entry.made += round - entry.began;
    entry.left = std::max<int64_t>(1, Left(entry.request, entry.made));
    Wait(entry);
    out.preempt.push_back(id);
  }
}

void MemoryRule::OnEnd(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  const Entry& entry = it->second;
  // A request that ends earlier than predicted releases the memory reserved for the rest.
  const int64_t over = round_ + 1;
  taken_ += kEndWeight * (TokenSteps(entry.prompt(), over - entry.began) - taken_);
  believed_ += kEndWeight * (TokenSteps(entry.prompt(), entry.left) - believed_);
  if (options_.lengths != nullptr) options_.lengths->Ended(entry.request, entry.made + over - entry.began);
  memory_.Remove(id, over + 1);
  pace_.Remove(id);
  began_.erase({entry.began, id});
  requests_.erase(it);
}

}  // namespace bfio::sim
