// The memory profile against sums over all requests.
#include "router/core/admission/mc_sf.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "absl/types/span.h"
#include "common/base/rng.h"

namespace bfio::core {
namespace {

// Reference implementation that adds up all requests.
struct PlainProfile {
  int64_t now = 0;
  std::vector<KvLine> lines;

  int64_t At(int64_t t) const {
    int64_t sum = 0;
    for (const KvLine& line : lines) sum += line.At(t);
    return sum;
  }
  // Sums rise until a line ends.
  int64_t Peak(int64_t from, int64_t to) const {
    int64_t peak = std::max(At(from), At(to));
    for (const KvLine& line : lines)
      peak = line.to >= from && line.to <= to ? std::max(peak, At(line.to)) : peak;
    return peak;
  }
  int64_t PeakWith(const KvLine& line) const {
    PlainProfile with = *this;
    with.lines.push_back(line);
    return with.Peak(std::max(line.from, now), std::max(line.from, line.to));
  }
};

KvLine RandomLine(Rng& rng, int64_t now, int64_t longest) {
  const int64_t prompt = static_cast<int64_t>(rng.Below(40)), from = now + static_cast<int64_t>(rng.Below(2));
  return {prompt - from, from, from + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(longest)))};
}

TEST(KvProfile, IsThePlainSumUnderRandomOperations) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    KvProfile profile;
    PlainProfile plain;
    const int64_t longest = seed % 4 == 0 ? int64_t{1} << 40 : 1 + static_cast<int64_t>(rng.Below(60));
    for (int i = 0; i < 120; ++i) {
      const double draw = rng.Uniform();
      if (draw < 0.45) {
        const KvLine line = RandomLine(rng, plain.now, longest);
        ASSERT_EQ(profile.PeakWith(line), plain.PeakWith(line)) << "seed " << seed << " operation " << i;
        profile.Add(line);
        plain.lines.push_back(line);
      } else if (draw < 0.6 && !plain.lines.empty()) {
        const size_t at = rng.Below(plain.lines.size());
        profile.Remove(plain.lines[at]);
        plain.lines.erase(plain.lines.begin() + static_cast<ptrdiff_t>(at));
      } else if (draw < 0.9) {
        plain.now += static_cast<int64_t>(rng.Below(draw < 0.62 ? 200 : 4));
        profile.Advance(plain.now);
        std::erase_if(plain.lines, [&](const KvLine& line) { return line.to < plain.now; });
      }
      const int64_t from = plain.now + static_cast<int64_t>(rng.Below(10));
      const int64_t to = from + static_cast<int64_t>(rng.Below(50));
      ASSERT_EQ(profile.Peak(from, to), plain.Peak(from, to)) << "seed " << seed << " operation " << i;
      ASSERT_EQ(profile.At(from), plain.At(from));
      const std::vector<int64_t> starts = {0, 1, 2 + static_cast<int64_t>(rng.Below(30)), 32};
      std::vector<int64_t> peaks(starts.size());
      profile.Peaks(starts, absl::MakeSpan(peaks));
      for (size_t k = 0; k < starts.size(); ++k) {
        const int64_t end = k + 1 < starts.size() ? starts[k + 1] : int64_t{1} << 41;
        ASSERT_EQ(peaks[k], plain.Peak(plain.now + starts[k], plain.now + end - 1))
            << "seed " << seed << " operation " << i << " interval " << k;
      }
    }
  }
}

}  // namespace
}  // namespace bfio::core
