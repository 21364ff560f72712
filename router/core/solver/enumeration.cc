#include "router/core/solver/enumeration.h"

#include <algorithm>
#include <cmath>

#include "router/core/solver/paper_pricing.h"
#include "router/core/solver/square_pricing.h"

namespace bfio::core {
namespace {

// Limit of the number of plans times the work to evaluate one: 0.3 ms at most. Covers G <= 3, |items| <= 6, H
// <= 20.
constexpr double kMostWork = 300'000;

double Work(const Instance& instance) {
  const auto open = std::count_if(instance.workers.begin(), instance.workers.end(),
                                  [](const WorkerView& worker) { return worker.free_slots > 0; });
  return std::pow(static_cast<double>(open + 1), static_cast<double>(instance.items.size())) *
         static_cast<double>(instance.workers.size()) * instance.steps();
}

}  // namespace

void Enumeration::CountWaiting(const std::vector<int32_t>& worker_of, std::vector<int32_t>& counts) const {
  counts.assign(class_of_.empty() ? 0 : class_of_.back() + 1, 0);
  for (size_t i = 0; i < worker_of.size(); ++i) {
    if (worker_of[i] == kUnassigned) ++counts[class_of_[i]];
  }
}

bool Enumeration::Affordable(const Instance& instance, const Run& run) {
  const double work = Work(instance);
  return work <= kMostWork && work <= static_cast<double>(run.budget());
}

template <class Pricing>
bool Enumeration::Improve(const Instance& instance, Pricing& pricing, Run& run, Solution& solution) {
  if (!run.Spend(static_cast<int64_t>(Work(instance)))) return false;
  open_.clear();
  for (size_t g = 0; g < instance.workers.size(); ++g) {
    if (instance.workers[g].free_slots > 0) open_.push_back(static_cast<int32_t>(g));
  }
  class_of_.clear();
  for (size_t i = 0; i < instance.items.size(); ++i) {
    const bool next = i > 0 && instance.items[i].priority != instance.items[i - 1].priority;
    class_of_.push_back(i == 0 ? 0 : class_of_.back() + (next ? 1 : 0));
  }
  best_ = solution.worker_of;
  CountWaiting(best_, best_waiting_);
  waiting_.assign(best_waiting_.size(), 0);
  best_value_ = pricing.Value();
  for (size_t i = 0; i < best_.size(); ++i) {
    if (best_[i] == kUnassigned) continue;
    best_value_ += pricing.AdmitCost(instance.items[i]);
    pricing.Put(static_cast<int32_t>(i), best_[i], -1);
  }
  weight_ = 0;
  found_ = false;
  allocation_.Reset(instance, worker_of_);
  Visit(0, pricing, run);
  if (found_) solution.worker_of = best_;
  return !run.Stopped();
}

template <class Pricing>
void Enumeration::Visit(int32_t item, Pricing& pricing, Run& run) {
  const Instance& instance = allocation_.instance();
  if (!run.GoOn(static_cast<int64_t>(instance.workers.size()) * instance.steps())) return;
  // More items of one class wait than in the best plan, and no fewer of any higher class.
  if (waiting_ > best_waiting_) return;
  if (item == allocation_.items()) return Judge(pricing);
  for (int32_t g : open_) {
    if (!allocation_.Fits(item, g)) continue;
    allocation_.Place(item, g);
    pricing.Put(item, g, +1);
    weight_ += pricing.AdmitCost(allocation_.item(item));
    Visit(item + 1, pricing, run);
    weight_ -= pricing.AdmitCost(allocation_.item(item));
    pricing.Put(item, g, -1);
    allocation_.Remove(item);
  }
  ++waiting_[class_of_[item]];
  Visit(item + 1, pricing, run);
  --waiting_[class_of_[item]];
}

template <class Pricing>
void Enumeration::Judge(Pricing& pricing) {
  pricing.Settle();
  const double value = pricing.Value() + weight_;
  if (waiting_ == best_waiting_ && value >= best_value_ - kLeastGain) return;
  best_waiting_ = waiting_;
  best_value_ = value;
  best_ = worker_of_;
  found_ = true;
}

template bool Enumeration::Improve(const Instance&, PaperPricing&, Run&, Solution&);
template bool Enumeration::Improve(const Instance&, SquarePricing&, Run&, Solution&);

}  // namespace bfio::core
