// Sums the residents of a worker into rows of expected load and of the probability that none has ended.
//
// Purpose: the inner loop of every projection by probabilities. A resident is active h steps ahead with
// probability alive[h] * scale, and has then grown by h. Up to kExactHorizon every h is summed. Beyond, only
// knots an eighth of h apart are summed, with linear interpolation between them: curves are that smooth,
// because hazards have bins of that width. A resident that max_new_tokens ends within the horizon is summed
// at every h in any case. Deterministic on every machine: each h is summed in the residents' order, with or
// without vector instructions (the kernel uses no fused multiply-add). Ownership: scratch memory of a
// lookahead, reused. Rows passed to Add are borrowed until Finish. Threads: one.
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
  // Rows are read up to this number of entries beyond their length.
  static constexpr int64_t kPadding = 8;

  // Starts a worker with at most `residents` residents and rows of `columns` entries.
  void Begin(size_t residents, size_t columns);

  // Number of entries to which the resident may contribute; it certainly ends before the others.
  int64_t StepsLeft(const Resident& resident, const Standing& standing);

  // REQUIRES: steps_left is from StepsLeft and not 0; alive has that number of entries, and kPadding readable
  // ones after them.
  void Add(const Standing& standing, int64_t steps_left, const double* alive, double scale);
  // As Add, but copies the row, which need not stay valid until Finish.
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
  // From this entry on at least one request has certainly ended.
  int64_t cut_ = 0;
  // The h that are summed; the same as floating-point numbers, padded.
  std::vector<int32_t> knots_;
  std::vector<double> steps_;
  std::vector<Item> items_;
  std::vector<Capped> capped_;
  // The copied rows. Their memory suffices for all rows of a worker, so no row moves.
  std::vector<double> rows_;
  size_t rows_used_ = 0;
  // Sums by knot.
  std::vector<double> knot_load_;
  std::vector<double> knot_quiet_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_LOOKAHEAD_ACCUMULATE_H_
