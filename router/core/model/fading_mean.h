// An exponentially weighted mean. Recent statistics that follow from events alone. Plain data. Threads: any.
#pragma once

namespace bfio::core {

// The exact mean of the first values, until 1 / share of them have been added.
struct FadingMean {
  // Total weight of the values so far, 0 .. 1; 1 is the limit for endlessly many values.
  double weight = 0;
  double value = 0;

  // `share`: the new value's weight in the long run, in (0, 1].
  void Add(double next, double share) {
    weight += share * (1 - weight);
    value += share / weight * (next - value);
  }
};

}  // namespace bfio::core
