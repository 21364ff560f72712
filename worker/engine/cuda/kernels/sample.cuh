// Draws the next token from a row of logits on the device, as worker/engine/sampling does on the CPU; one
// block per row. Every decision is made with exact integer sums, so a draw depends only on the logits and the
// parameters, not on the order in which threads add. A token's weight is exp((logit - largest) / temperature)
// in units of 2^-38, truncated to an integer; tokens with less than one unit cannot be drawn.
// (worker/engine/sampling adds doubles: the two differ only where the uniform number falls within about 1e-6
// of a boundary.)
//
// Truncation needs the tokens in the order of their logits, but they are not sorted. Weights and counts go
// into 1,024 bins of width 1/32 in (largest - logit) / temperature. The bin that contains the boundary is
// found, and its tokens are put into 1,024 finer bins by the bits of their logits, until a bin contains a
// single logit value. The tokens in that bin are equal and are ordered by id.
#pragma once

#include "worker/engine/cuda/kernels/device.h"
#include "worker/engine/cuda/kernels/sample_args.h"

namespace bfio::worker::gpu {

inline constexpr int kSampleThreads = 512;
inline constexpr int kBins = 1024;
inline constexpr int kBinBits = 10;
inline constexpr float kBinsPerUnit = 32;
// A weight of 1.
inline constexpr float kWeightOne = 0x1p38f;
inline constexpr double kWeightUnit = 0x1p-38;
// A bin's sum of weights is stored as limbs of 13 bits, each summed separately, because shared memory has
// 32-bit atomic adds.
inline constexpr int kLimbs = 3;
inline constexpr int kLimbBits = 13;

using Weight = unsigned long long;

struct Bins {
  int count[kBins];
  int limbs[kLimbs][kBins];
};

struct SampleShared {
  Bins coarse, fine;
  // By warp.
  Weight sums[32];
  float maxima[32];
  uint32_t ids[32];
  // Results that one thread shares with all.
  Weight above;
  uint32_t found;
};

struct Row {
  const float* logits;
  int32_t vocab;
  float largest;
  float inverse;
};

// The position of a boundary in the order of logits.
struct Place {
  // False: beyond the last token that can be drawn.
  bool found;
  // Logit of the tokens at the boundary.
  float logit;
  Weight weight;
  // Sum of weights, or number of tokens, before the first of them.
  Weight above;
};

BFIO_DEVICE Weight WeightOf(const Row& row, float logit) {
  const float distance = logit - row.largest;
  if (!(distance > -3e38f)) return 0;  // minus infinity times an inverse of 0 is NaN
  return static_cast<Weight>(Exp(distance * row.inverse) * kWeightOne);
}

// A key that increases with the logit; 0 and -0 have the same.
BFIO_DEVICE uint32_t KeyOf(float logit) {
  const uint32_t bits = FloatBits(logit + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
BFIO_DEVICE float LogitOf(uint32_t key) {
  return BitsFloat((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

BFIO_DEVICE int CoarseBin(const Row& row, float logit) {
  const float distance = (row.largest - logit) * row.inverse * kBinsPerUnit;
  return distance < kBins - 1 ? static_cast<int>(distance) : kBins - 1;
}

BFIO_DEVICE Weight ShuffleWeight(Weight value, int lane) {
  const uint32_t low = Shuffle(static_cast<uint32_t>(value), lane);
  const uint32_t high = Shuffle(static_cast<uint32_t>(value >> 32), lane);
  return static_cast<Weight>(high) << 32 | low;
}

// The sum over this lane and those before it.
BFIO_DEVICE Weight WarpPrefix(Weight value) {
  for (int offset = 1; offset < kWarpLanes; offset *= 2) {
    const Weight before = ShuffleWeight(value, LaneIndex() >= offset ? LaneIndex() - offset : LaneIndex());
    if (LaneIndex() >= offset) value += before;
  }
  return value;
}

BFIO_DEVICE Weight WarpTotal(Weight value) {
  return ShuffleWeight(WarpPrefix(value), kWarpLanes - 1);
}

// The sum over the block; every thread gets it.
BFIO_DEVICE Weight BlockSum(Weight value, SampleShared& shared) {
  value = WarpTotal(value);
  SyncBlock();
  if (LaneIndex() == 0) shared.sums[WarpIndex()] = value;
  SyncBlock();
  Weight sum = 0;
  for (int warp = 0; warp < BlockThreads() / kWarpLanes; ++warp) sum += shared.sums[warp];
  return sum;
}

// Finds the largest logit, the smallest id among equals. Returns whether all logits are finite or minus
// infinity.
BFIO_DEVICE bool FindLargest(const float* logits, int32_t vocab, SampleShared& shared, float& largest,
                             uint32_t& largest_id) {
  float best = -INFINITY;
  uint32_t id = 0;
  bool broken = false;
  for (int32_t i = ThreadIndex(); i < vocab; i += BlockThreads()) {
    const float logit = logits[i];
    broken = broken || !(logit < INFINITY);
    if (logit > best) {
      best = logit;
      id = i;
    }
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    const float other = ShuffleXor(best, offset);
    const uint32_t other_id = ShuffleXor(id, offset);
    if (other > best || (other == best && other_id < id)) {
      best = other;
      id = other_id;
    }
  }
  if (LaneIndex() == 0) {
    shared.maxima[WarpIndex()] = best;
    shared.ids[WarpIndex()] = id;
  }
  // Also a barrier between the writes above and the reads below.
  const bool any_broken = BlockSum(broken ? 1 : 0, shared) != 0;
  largest = shared.maxima[0];
  largest_id = shared.ids[0];
  for (int warp = 1; warp < BlockThreads() / kWarpLanes; ++warp) {
    const float other = shared.maxima[warp];
    if (other > largest || (other == largest && shared.ids[warp] < largest_id)) {
      largest = other;
      largest_id = shared.ids[warp];
    }
  }
  return !any_broken && largest > -INFINITY;
}

BFIO_DEVICE void ClearBins(Bins& bins) {
  for (int bin = ThreadIndex(); bin < kBins; bin += BlockThreads()) {
    bins.count[bin] = 0;
    for (int limb = 0; limb < kLimbs; ++limb) bins.limbs[limb][bin] = 0;
  }
  SyncBlock();
}

BFIO_DEVICE void AddToBin(Bins& bins, int bin, Weight weight) {
  AtomicAdd(&bins.count[bin], 1);
  for (int limb = 0; limb < kLimbs; ++limb) {
    const int part = static_cast<int>(weight >> (limb * kLimbBits)) & ((1 << kLimbBits) - 1);
    if (part != 0) AtomicAdd(&bins.limbs[limb][bin], part);
  }
}

BFIO_DEVICE Weight BinTotal(const Bins& bins, int bin, bool by_count) {
  if (by_count) return static_cast<Weight>(bins.count[bin]);
  Weight total = 0;
  for (int limb = 0; limb < kLimbs; ++limb) {
    total += static_cast<Weight>(bins.limbs[limb][bin]) << (limb * kLimbBits);
  }
  return total;
}

// The first bin at which the running total, which starts at `above`, exceeds `target`; `above` becomes the
// total before that bin. kBins: no such bin. Every thread gets the result.
BFIO_DEVICE int FindBin(const Bins& bins, bool by_count, Weight target, Weight& above, SampleShared& shared) {
  constexpr int kPerLane = kBins / 32;
  SyncBlock();
  if (WarpIndex() == 0) {
    const int first = LaneIndex() * kPerLane;
    Weight own = 0;
    for (int i = 0; i < kPerLane; ++i) own += BinTotal(bins, first + i, by_count);
    const Weight until = WarpPrefix(own);
    Weight total = above + until - own;
    if (LaneIndex() == kWarpLanes - 1 && above + until <= target) shared.found = kBins;
    if (total <= target && total + own > target) {
      int bin = first;
      for (; total + BinTotal(bins, bin, by_count) <= target; ++bin) total += BinTotal(bins, bin, by_count);
      shared.found = bin;
      shared.above = total;
    }
  }
  SyncBlock();
  const int bin = static_cast<int>(shared.found);
  if (bin < kBins) above = shared.above;
  return bin;
}

// Finds where, in the order of logits, the sum of weights (or the number of tokens) first exceeds `target`.
// REQUIRES: the coarse bins are filled. Every thread gets the result.
BFIO_DEVICE Place FindPlace(const Row& row, bool by_count, Weight target, SampleShared& shared) {
  Place place = {false, 0, 0, 0};
  const int coarse = FindBin(shared.coarse, by_count, target, place.above, shared);
  if (coarse == kBins) return place;
  uint32_t low = 0xffffffffu, high = 0;
  for (int32_t i = ThreadIndex(); i < row.vocab; i += BlockThreads()) {
    if (CoarseBin(row, row.logits[i]) != coarse || WeightOf(row, row.logits[i]) == 0) continue;
    const uint32_t key = KeyOf(row.logits[i]);
    low = key < low ? key : low;
    high = key > high ? key : high;
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    const uint32_t other_low = ShuffleXor(low, offset);
    const uint32_t other_high = ShuffleXor(high, offset);
    low = other_low < low ? other_low : low;
    high = other_high > high ? other_high : high;
  }
  SyncBlock();
  if (LaneIndex() == 0) {
    shared.ids[WarpIndex()] = high;
    shared.sums[WarpIndex()] = low;
  }
  SyncBlock();
  for (int warp = 0; warp < BlockThreads() / kWarpLanes; ++warp) {
    const auto other_low = static_cast<uint32_t>(shared.sums[warp]);
    low = other_low < low ? other_low : low;
    high = shared.ids[warp] > high ? shared.ids[warp] : high;
  }
  while (low != high) {
    int shift = 0;
    while ((high - low) >> shift >= kBins) ++shift;
    ClearBins(shared.fine);
    for (int32_t i = ThreadIndex(); i < row.vocab; i += BlockThreads()) {
      const uint32_t key = KeyOf(row.logits[i]);
      if (key < low || key > high) continue;
      const Weight weight = WeightOf(row, row.logits[i]);
      if (weight != 0) AddToBin(shared.fine, static_cast<int>((high - key) >> shift), weight);
    }
    const int fine = FindBin(shared.fine, by_count, target, place.above, shared);
    high -= static_cast<uint32_t>(fine) << shift;
    const uint32_t width = (1u << shift) - 1;
    low = high - low > width ? high - width : low;
  }
  place.found = true;
  place.logit = LogitOf(high);
  place.weight = WeightOf(row, place.logit);
  return place;
}

// The first id, in the order of ids, at which the sum of value(logit) exceeds `target`. REQUIRES: there is
// one. Every thread gets the result.
template <typename Value>
BFIO_DEVICE uint32_t FindId(const Row& row, Weight target, const Value& value, SampleShared& shared) {
  const int warps = BlockThreads() / kWarpLanes, warp = WarpIndex();
  const int lane = LaneIndex();
  const int32_t length = (row.vocab + 32 * warps - 1) / (32 * warps) * 32;
  const int32_t begin = warp * length, end = begin + length < row.vocab ? begin + length : row.vocab;
  Weight sum = 0;
  for (int32_t i = begin + lane; i < end; i += 32) sum += value(row.logits[i]);
  sum = WarpTotal(sum);
  SyncBlock();
  if (lane == 0) shared.sums[warp] = sum;
  SyncBlock();
  Weight before = 0;
  for (int w = 0; w < warp; ++w) before += shared.sums[w];
  if (before <= target && before + sum > target) {
    for (int32_t first = begin; first < end; first += 32) {
      const Weight until = WarpPrefix(first + lane < end ? value(row.logits[first + lane]) : 0);
      const uint32_t reached = Ballot(before + until > target);
      if (reached != 0) {
        if (reached << (kWarpLanes - 1 - lane) == 1u << (kWarpLanes - 1)) shared.found = first + lane;
        break;
      }
      before += ShuffleWeight(until, kWarpLanes - 1);
    }
  }
  SyncBlock();
  return shared.found;
}

// floor(share * total), less than total.
BFIO_DEVICE Weight ShareOf(double share, Weight total) {
  const auto part = static_cast<Weight>(share * static_cast<double>(total));
  return part < total ? part : total - 1;
}

// Draws among the top_k, and of those in the nucleus of top_p.
BFIO_DEVICE uint32_t DrawTruncated(const Row& row, const DrawParams& params, Weight total,
                                   SampleShared& shared) {
  ClearBins(shared.coarse);
  for (int32_t i = ThreadIndex(); i < row.vocab; i += BlockThreads()) {
    const Weight weight = WeightOf(row, row.logits[i]);
    if (weight != 0) AddToBin(shared.coarse, CoarseBin(row, row.logits[i]), weight);
  }
  Weight kept = total;
  if (params.top_k > 0 && params.top_k < row.vocab) {
    const Place last = FindPlace(row, true, static_cast<Weight>(params.top_k) - 1, shared);
    if (last.found) {
      Weight above = 0;
      for (int32_t i = ThreadIndex(); i < row.vocab; i += BlockThreads()) {
        if (row.logits[i] > last.logit) above += WeightOf(row, row.logits[i]);
      }
      kept = BlockSum(above, shared) + (static_cast<Weight>(params.top_k) - last.above) * last.weight;
    }
  }
  if (params.top_p < 1) {
    // The fewest tokens whose weights sum to at least this.
    const double wanted = ceil(params.top_p * static_cast<double>(kept));
    const Weight least = wanted < 1 ? 1 : static_cast<Weight>(wanted);
    const Place last = FindPlace(row, false, (least < kept ? least : kept) - 1, shared);
    const Weight equals = ((least < kept ? least : kept) - 1 - last.above) / last.weight + 1;
    kept = last.above + equals * last.weight;
  }
  const Weight target = ShareOf(params.uniform, kept);
  const Place drawn = FindPlace(row, false, target, shared);
  const auto equal = [&](float logit) -> Weight { return logit == drawn.logit ? 1 : 0; };
  return FindId(row, (target - drawn.above) / drawn.weight, equal, shared);
}

// Writes the `count` most likely tokens, the most likely first, among equals the smaller id: one pass over
// the row for each. `log_mass`: the logarithm of the sum of all tokens' exponentials. REQUIRES: no logit is
// NaN.
BFIO_DEVICE void FindTop(const Row& row, int count, double log_mass, SampleShared& shared, TopResult* top) {
  // The token found last; at first one before all others.
  uint32_t last = 0xffffffffu, last_id = 0;
  for (int n = 0; n < count; ++n) {
    // 0, which no logit has: none found.
    uint32_t best = 0, id = 0;
    for (int32_t i = ThreadIndex(); i < row.vocab; i += BlockThreads()) {
      const uint32_t key = KeyOf(row.logits[i]);
      const bool left = key < last || (key == last && static_cast<uint32_t>(i) > last_id);
      if (left && key > best) {
        best = key;
        id = i;
      }
    }
    for (int offset = 16; offset > 0; offset /= 2) {
      const uint32_t other = ShuffleXor(best, offset);
      const uint32_t other_id = ShuffleXor(id, offset);
      if (other > best || (other == best && other_id < id)) {
        best = other;
        id = other_id;
      }
    }
    SyncBlock();
    if (LaneIndex() == 0) {
      shared.sums[WarpIndex()] = best;
      shared.ids[WarpIndex()] = id;
    }
    SyncBlock();
    last = 0;
    for (int warp = 0; warp < BlockThreads() / kWarpLanes; ++warp) {
      const auto other = static_cast<uint32_t>(shared.sums[warp]);
      if (other > last || (other == last && shared.ids[warp] < last_id)) {
        last = other;
        last_id = shared.ids[warp];
      }
    }
    if (ThreadIndex() == 0)
      top[n] = {last_id, static_cast<float>(static_cast<double>(LogitOf(last)) - log_mass)};
  }
}

BFIO_KERNEL(kSampleThreads, 1) SampleKernel(SampleArgs args) {
  BFIO_SHARED_ARRAY(SampleShared, memory, 1);
  SampleShared& shared = memory[0];
  const int draw = BlockIndex();
  if (draw >= args.counts->draws) return;
  const DrawParams params = args.params[draw];
  Row row = {args.logits + static_cast<int64_t>(draw) * args.vocab, args.vocab, 0, 1};
  uint32_t id = 0;
  DrawResult result;
  if (!FindLargest(row.logits, row.vocab, shared, row.largest, id)) {
    if (ThreadIndex() == 0) args.results[draw] = result;
    return;
  }
  const bool greedy = params.inverse_temperature == 0;
  Row tempered = row;
  if (!greedy) tempered.inverse = params.inverse_temperature;
  Weight mass = 0, tempered_mass = 0;
  for (int32_t i = ThreadIndex(); i < row.vocab; i += BlockThreads()) {
    mass += WeightOf(row, row.logits[i]);
    if (tempered.inverse != 1) tempered_mass += WeightOf(tempered, row.logits[i]);
  }
  mass = BlockSum(mass, shared);
  tempered_mass = tempered.inverse != 1 ? BlockSum(tempered_mass, shared) : mass;
  if (!greedy) {
    const bool truncated = params.top_p < 1 || (params.top_k > 0 && params.top_k < row.vocab);
    const auto weight = [&](float logit) { return WeightOf(tempered, logit); };
    id = truncated ? DrawTruncated(tempered, params, tempered_mass, shared)
                   : FindId(tempered, ShareOf(params.uniform, tempered_mass), weight, shared);
  }
  Weight ends = 0;
  for (int32_t i = ThreadIndex(); i < params.end_count; i += BlockThreads()) {
    ends += WeightOf(tempered, row.logits[args.ends[params.first_end + i]]);
  }
  ends = BlockSum(ends, shared);
  const double log_mass = row.largest + log(static_cast<double>(mass) * kWeightUnit);
  if (params.top > 0) FindTop(row, params.top, log_mass, shared, args.tops + int64_t{draw} * kMaxTop);
  if (ThreadIndex() != 0) return;
  result.id = id;
  result.log_probability = static_cast<float>(static_cast<double>(row.logits[id]) - log_mass);
  result.end_probability = static_cast<float>(static_cast<double>(ends) / static_cast<double>(tempered_mass));
  result.finite = 1;
  args.results[draw] = result;
}

}  // namespace bfio::worker::gpu
