#include "router/core/lookahead/accumulate.h"

#include <algorithm>

// Adds a version of the kernel for wider vectors, chosen when the program is loaded. AVX2 without FMA gives
// the same bits. Disabled with sanitizers, which fail with functions that are resolved before they start.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define BFIO_WIDE_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define BFIO_WIDE_CLONES
#endif

namespace bfio::core {
namespace {

// Four doubles: one register with AVX, two without.
using Vector = double __attribute__((vector_size(32), aligned(8)));
constexpr size_t kLanes = 4;
// Vectors of h per pass over the residents: as many as fit into registers.
constexpr size_t kBlock = 2;
static_assert(kLanes * kBlock == Accumulator::kPadding);

}  // namespace

void Accumulator::Begin(size_t residents, size_t columns) {
  if (columns != columns_) SetKnots(columns);
  items_.clear();
  capped_.clear();
  rows_used_ = 0;
  rows_.resize(std::max(rows_.size(), residents * (columns + kPadding)));
  cut_ = static_cast<int64_t>(columns);
}

void Accumulator::SetKnots(size_t columns) {
  columns_ = columns;
  knots_.clear();
  for (int64_t h = 0, last = static_cast<int64_t>(columns) - 1;;) {
    knots_.push_back(static_cast<int32_t>(h));
    if (h == last) break;
    // 1 up to 16, then 2 up to 32, 4 up to 64, ...
    int64_t stride = 1;
    if (last > kExactHorizon) {
      while (16 * stride <= h) stride *= 2;
    }
    h = std::min(last, h + stride);
  }
  const size_t padded = (knots_.size() + kPadding - 1) / kPadding * kPadding;
  steps_.assign(padded, 0);
  for (size_t i = 0; i < knots_.size(); ++i) steps_[i] = knots_[i];
  knot_load_.resize(padded);
  knot_quiet_.resize(padded);
}

int64_t Accumulator::StepsLeft(const Resident& resident, const Standing& standing) {
  const int64_t steps_left =
      resident.dropped ? 0 : std::clamp<int64_t>(standing.steps_left, 0, static_cast<int64_t>(columns_));
  cut_ = std::min(cut_, steps_left);
  return steps_left;
}

double* Accumulator::NewRow(size_t entries) {
  double* const row = rows_.data() + rows_used_;
  rows_used_ += entries + kPadding;
  return row;
}

void Accumulator::Add(const Standing& standing, int64_t steps_left, const double* alive, double scale) {
  const Item item = {alive, scale, static_cast<double>(standing.tokens)};
  if (steps_left < static_cast<int64_t>(columns_)) {
    capped_.push_back({item, steps_left});
  } else if (knots_.size() == columns_) {
    items_.push_back(item);
  } else {
    double* const row = NewRow(knots_.size());
    for (size_t i = 0; i < knots_.size(); ++i) row[i] = alive[knots_[i]];
    items_.push_back({row, scale, item.tokens});
  }
}

void Accumulator::AddCopy(const Standing& standing, int64_t steps_left, const double* alive, double scale) {
  if (steps_left == static_cast<int64_t>(columns_) && knots_.size() < columns_) {
    Add(standing, steps_left, alive, scale);  // copies the knots
    return;
  }
  double* const row = NewRow(static_cast<size_t>(steps_left));
  std::copy_n(alive, steps_left, row);
  Add(standing, steps_left, row, scale);
}

BFIO_WIDE_CLONES
void Accumulator::Sum(const Item* items, size_t count, const double* steps, size_t knots, double* load,
                      double* quiet) {
  for (size_t first = 0; first < knots; first += kLanes * kBlock) {
    Vector h[kBlock], sum[kBlock], product[kBlock];
    for (size_t b = 0; b < kBlock; ++b) {
      h[b] = *reinterpret_cast<const Vector*>(steps + first + b * kLanes);
      sum[b] = Vector{};
      product[b] = Vector{} + 1;
    }
    for (size_t i = 0; i < count; ++i) {
      const Item& item = items[i];
      for (size_t b = 0; b < kBlock; ++b) {
        const Vector p = *reinterpret_cast<const Vector*>(item.alive + first + b * kLanes) * item.scale;
        sum[b] += (item.tokens + h[b]) * p;
        product[b] *= p;
      }
    }
    for (size_t b = 0; b < kBlock; ++b) {
      *reinterpret_cast<Vector*>(load + first + b * kLanes) = sum[b];
      *reinterpret_cast<Vector*>(quiet + first + b * kLanes) = product[b];
    }
  }
}

void Accumulator::Interpolate(absl::Span<double> load, absl::Span<double> quiet) const {
  for (size_t i = 0; i + 1 < knots_.size(); ++i) {
    const int32_t from = knots_[i], width = knots_[i + 1] - from;
    const double load_slope = (knot_load_[i + 1] - knot_load_[i]) / width;
    const double quiet_slope = (knot_quiet_[i + 1] - knot_quiet_[i]) / width;
    for (int32_t j = 0; j < width; ++j) {
      load[from + j] = knot_load_[i] + load_slope * j;
      quiet[from + j] = knot_quiet_[i] + quiet_slope * j;
    }
  }
  load.back() = knot_load_[knots_.size() - 1];
  quiet.back() = knot_quiet_[knots_.size() - 1];
}

void Accumulator::Finish(absl::Span<double> load, absl::Span<double> quiet) {
  Sum(items_.data(), items_.size(), steps_.data(), steps_.size(), knot_load_.data(), knot_quiet_.data());
  Interpolate(load, quiet);
  for (const Capped& capped : capped_) {
    for (int64_t h = 0; h < capped.steps_left; ++h) {
      const double p = capped.item.alive[h] * capped.item.scale;
      load[h] += (capped.item.tokens + static_cast<double>(h)) * p;
      quiet[h] *= p;
    }
  }
  std::fill(quiet.begin() + cut_, quiet.end(), 0.0);
}

}  // namespace bfio::core
