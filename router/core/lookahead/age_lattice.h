// Bins of ages: one per age while young, of relative width 1 / `per_octave` when old.
//
// Purpose: hazards are estimated per bin, so that an age that few requests reach uses the data of its
// neighbours. Ages here are token numbers, counted from 1. Plain arithmetic. Threads: any; constant after
// construction.
#ifndef BFIO_ROUTER_CORE_LOOKAHEAD_AGE_LATTICE_H_
#define BFIO_ROUTER_CORE_LOOKAHEAD_AGE_LATTICE_H_

#include <algorithm>
#include <bit>
#include <cstdint>

namespace bfio::core {

class AgeLattice {
 public:
  // Token numbers from here on share the last bin.
  static constexpr int64_t kMaxToken = int64_t{1} << 20;

  // REQUIRES: per_octave is a power of two.
  explicit AgeLattice(int32_t per_octave)
      : per_octave_(per_octave), bits_(std::countr_zero(Unsigned(per_octave))) {}

  // REQUIRES: token >= 1.
  int32_t Bin(int64_t token) const {
    const uint64_t v = Unsigned(std::min(token, kMaxToken) - 1);
    if (v < Unsigned(2 * int64_t{per_octave_})) return static_cast<int32_t>(v);
    const int shift = std::bit_width(v) - 1 - bits_;
    return shift * per_octave_ + static_cast<int32_t>(v >> shift);
  }

  // The smallest token number of the bin.
  int64_t First(int32_t bin) const {
    if (bin < 2 * per_octave_) return int64_t{bin} + 1;
    const int32_t shift = bin / per_octave_ - 1;
    return (int64_t{bin - shift * per_octave_} << shift) + 1;
  }

  int32_t bins() const { return Bin(kMaxToken) + 1; }

 private:
  static constexpr uint64_t Unsigned(int64_t v) { return static_cast<uint64_t>(v); }

  int32_t per_octave_;
  int bits_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_LOOKAHEAD_AGE_LATTICE_H_
