#include "router/core/solver/exhaustive.h"

#include "router/core/solver/allocation.h"
#include "router/core/solver/solver.h"

namespace bfio::core {
namespace {

class Enumeration {
 public:
  Enumeration(const Instance& instance, const SolverSettings& settings)
      : instance_(instance), settings_(settings) {
    allocation_.Reset(instance, current_.worker_of);
  }

  ExactAnswer Run() {
    best_.admitted = -1;
    Visit(0, 0);
    return best_;
  }

 private:
  // Decides items `item`, item + 1, ...; `admitted` of the earlier ones are placed.
  void Visit(int32_t item, int64_t admitted) {
    if (item == allocation_.items()) return Judge(admitted);
    Visit(item + 1, admitted);
    for (int32_t g = 0; g < allocation_.workers(); ++g) {
      if (!allocation_.Fits(item, g)) continue;
      allocation_.Place(item, g);
      Visit(item + 1, admitted + 1);
      allocation_.Remove(item);
    }
  }

  void Judge(int64_t admitted) {
    if (admitted < best_.admitted) return;
    const double objective = Evaluate(instance_, settings_, current_);
    if (admitted == best_.admitted && objective >= best_.objective) return;
    best_ = {current_, objective, admitted};
  }

  const Instance& instance_;
  const SolverSettings& settings_;
  Solution current_;
  Allocation allocation_;
  ExactAnswer best_;
};

}  // namespace

ExactAnswer SolveExhaustively(const Instance& instance, const SolverSettings& settings) {
  return Enumeration(instance, settings).Run();
}

}  // namespace bfio::core
