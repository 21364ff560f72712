// Sums a worker's residents into rows of expected load and quiet probability.
//
// Purpose: the inner loop of every projection by probabilities. A resident is active h steps on with
// alive[h] * scale and has grown by h by then. Up to kExactHorizon every h is summed; beyond, only knots that
// are an eighth of h apart, straight lines between them: curves are that smooth, for hazards come in bins of
// that width. A resident that max_new_tokens ends within the horizon is summed at every h all the same.
// Deterministic on every machine: each h is summed in the residents' order, vector width or not (the
// kernel uses no fused multiply-add).
// Ownership: scratch of a lookahead, reused. Rows handed to Add are borrowed until Finish. Threads: one.
#ifndef BFIO_ROUTER_CORE_LOOKAHEAD_ACCUMULATE_H_
#define BFIO_ROUTER_CORE_LOOKAHEAD_ACCUMULATE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "router/core/lookahead/lookahead.h"

namespace bfio::core {

class Accumulator {
 public:
  static constexpr int64_t kExactHorizon = 32;
  // Rows are read so many entries past what they are asked for.
  static constexpr int64_t kPadding = 8;

  // Begins a worker with at most `residents` of them and rows of `columns` entries.
  void Begin(size_t residents, size_t columns);

  // How many of the entries the resident may contribute to; it surely ends before the others.
  int64_t StepsLeft(const Resident& resident, const Standing& standing);

  // REQUIRES: steps_left is from StepsLeft and not 0; alive has that many entries and kPadding readable ones
  // after them.
  void Add(const Standing& standing, int64_t steps_left, const double* alive, double scale);
  // The same with a row that is not kept: it is copied.
  void AddCopy(const Standing& standing, int64_t steps_left, const double* alive, double scale);

  void Finish(absl::Span<double> load, absl::Span<double> quiet);

 private:
  struct Item {
    const double* alive;
    double scale;
    double tokens;
  };
  struct Capped {
    Item item;
    int64_t steps_left;
  };

  void SetKnots(size_t columns);
  double* NewRow(size_t entries);
  static void Sum(const Item* items, size_t count, const double* steps, size_t knots, double* load,
                  double* quiet);
  void Interpolate(absl::Span<double> load, absl::Span<double> quiet) const;

  size_t columns_ = 0;
  // From here on some request has surely ended.
  int64_t cut_ = 0;
  // The h that are summed, and the same as numbers; padded.
  std::vector<int32_t> knots_;
  std::vector<double> steps_;
  std::vector<Item> items_;
  std::vector<Capped> capped_;
  // Rows of our own; memory for all of a worker's, so that none moves.
  std::vector<double> rows_;
  size_t rows_used_ = 0;
  // Sums by knot.
  std::vector<double> knot_load_;
  std::vector<double> knot_quiet_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_LOOKAHEAD_ACCUMULATE_H_
