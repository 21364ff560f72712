#include "tests/testing/exhaustive.h"

#include <numeric>

#include "router/core/solver/evaluate.h"
#include "router/core/solver/instance.h"

namespace bfio::core {
namespace {

class Trial {
 public:
  Trial(const Instance& instance, const SolverSettings& settings) : instance_(instance), settings_(settings) {
    allocation_.Reset(instance, current_.worker_of);
  }

  ExactAnswer Run() {
    for (size_t i = 0; i < instance_.items.size(); ++i) {
      const bool next = i == 0 || instance_.items[i].priority != instance_.items[i - 1].priority;
      if (next) admitted_.push_back(0);
      class_of_.push_back(admitted_.size() - 1);
    }
    Visit(0);
    return best_;
  }

 private:
  // Decides items `item`, item + 1, ...
  void Visit(int32_t item) {
    if (item == allocation_.items()) return Judge();
    Visit(item + 1);
    for (int32_t g = 0; g < allocation_.workers(); ++g) {
      if (!allocation_.Fits(item, g)) continue;
      allocation_.Place(item, g);
      ++admitted_[class_of_[item]];
      Visit(item + 1);
      --admitted_[class_of_[item]];
      allocation_.Remove(item);
    }
  }

  void Judge() {
    if (found_ && admitted_ < best_.admitted_by_class) return;
    const double objective = Evaluate(instance_, settings_, current_);
    if (found_ && admitted_ == best_.admitted_by_class && objective >= best_.objective) return;
    found_ = true;
    best_ = {current_, objective, std::accumulate(admitted_.begin(), admitted_.end(), int64_t{0}), admitted_};
  }

  const Instance& instance_;
  const SolverSettings& settings_;
  Solution current_;
  Allocation allocation_;
  // By item: its class. By class: number of items placed.
  std::vector<size_t> class_of_;
  std::vector<int64_t> admitted_;
  ExactAnswer best_;
  bool found_ = false;
};

}  // namespace

ExactAnswer SolveExhaustively(const Instance& instance, const SolverSettings& settings) {
  return Trial(instance, settings).Run();
}

}  // namespace bfio::core
