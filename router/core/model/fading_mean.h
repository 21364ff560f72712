// An exponentially weighted mean.
//
// Purpose: recent statistics that follow from events alone. Plain data. Threads: any.
#ifndef BFIO_ROUTER_CORE_MODEL_FADING_MEAN_H_
#define BFIO_ROUTER_CORE_MODEL_FADING_MEAN_H_

namespace bfio::core {

// Exact over the first values.
struct FadingMean {
  // Of all values so far, against what endless values would have: 0 .. 1.
  double weight = 0;
  double value = 0;

  // `share`: the new value's weight in the long run, in (0, 1].
  void Add(double next, double share) {
    weight += share * (1 - weight);
    value += share / weight * (next - value);
  }
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_MODEL_FADING_MEAN_H_
