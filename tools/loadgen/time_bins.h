// Sums over equal intervals of a run of unknown length, in bounded memory.
//
// Purpose: charts of runs of seconds and of days have the same size. When the bins are used up, each two
// neighbours are merged into one of twice the width. Pure; one thread at a time. REQUIRES of Bin: default
// constructible, void Merge(const Bin&).
#ifndef BFIO_TOOLS_LOADGEN_TIME_BINS_H_
#define BFIO_TOOLS_LOADGEN_TIME_BINS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace bfio::loadgen {

template <typename Bin>
class TimeBins {
 public:
  // Maximum number of bins. After the first merge there are at least half as many.
  static constexpr size_t kMost = 120;
  static constexpr double kFirstWidthS = 0.5;
  // 30 years. Later times count as this one, and times before 0 as 0.
  static constexpr double kLongestS = 1e9;

  // The bin of a time in seconds after the start; times may come in any order.
  Bin& At(double seconds) {
    const double t = seconds > 0 ? std::min(seconds, kLongestS) : 0;
    while (t >= width_s_ * static_cast<double>(kMost)) Halve();
    const auto index = static_cast<size_t>(t / width_s_);
    if (index >= bins_.size()) bins_.resize(index + 1);
    return bins_[index];
  }

  // Bin i covers [i, i + 1) * width_s.
  const std::vector<Bin>& bins() const { return bins_; }
  double width_s() const { return width_s_; }

 private:
  void Halve() {
    width_s_ *= 2;
    std::vector<Bin> halved((bins_.size() + 1) / 2);
    for (size_t i = 0; i < bins_.size(); ++i) {
      if (i % 2 == 0) {
        halved[i / 2] = std::move(bins_[i]);
      } else {
        halved[i / 2].Merge(bins_[i]);
      }
    }
    bins_ = std::move(halved);
  }

  double width_s_ = kFirstWidthS;
  std::vector<Bin> bins_;
};

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_TIME_BINS_H_
