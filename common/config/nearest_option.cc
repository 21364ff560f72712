#include "common/config/nearest_option.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"

namespace bfio {
namespace {

// Number of single-character edits between two words; flag names are short, so the full table is fast enough.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, substituted}));
    }
  }
  return row[b.size()];
}

}  // namespace

std::string NearestOption(absl::string_view name, const OptionTable& options) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const Option& option : options.options()) {
    const std::string& candidate = option.name;
    const size_t distance = absl::StartsWith(candidate, name) ? 1 : EditDistance(name, candidate);
    if (distance < best_distance || (distance == best_distance && !best.empty() && candidate < best)) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace bfio
