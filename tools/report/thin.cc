#include "tools/report/thin.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace bfio::report {
namespace {

// Positions are bounded (Scale::Map), so at this width everything is in one column.
constexpr double kWidest = 1 << 17;

int64_t Column(double x, double width) {
  return static_cast<int64_t>(std::floor(x / width));
}

std::vector<Point> ThinToColumns(const std::vector<Point>& points, double width) {
  std::vector<Point> kept = {points.front()};
  for (size_t begin = 0; begin < points.size();) {
    const int64_t column = Column(points[begin].x, width);
    size_t low = begin;
    size_t high = begin;
    size_t end = begin + 1;
    for (; end < points.size() && Column(points[end].x, width) == column; ++end) {
      if (points[end].y < points[low].y) low = end;
      if (points[end].y > points[high].y) high = end;
    }
    for (const size_t i : {std::min(low, high), std::max(low, high)}) {
      if (points[i] != kept.back()) kept.push_back(points[i]);
    }
    begin = end;
  }
  if (points.back() != kept.back()) kept.push_back(points.back());
  return kept;
}

std::vector<bool> ExtremesOfColumns(const std::vector<Point>& points, double width) {
  absl::flat_hash_map<int64_t, std::pair<size_t, size_t>> extremes;
  for (size_t i = 0; i < points.size(); ++i) {
    auto& [low, high] = extremes.try_emplace(Column(points[i].x, width), i, i).first->second;
    if (points[i].y < points[low].y) low = i;
    if (points[i].y > points[high].y) high = i;
  }
  std::vector<bool> keep(points.size(), false);
  for (const auto& [column, ends] : extremes) keep[ends.first] = keep[ends.second] = true;
  return keep;
}

}  // namespace

std::vector<Point> ThinLine(const std::vector<Point>& points, size_t limit) {
  std::vector<Point> kept = points;
  if (points.size() <= limit) return kept;
  // The first and the last point come on top.
  for (double width = 1; kept.size() > limit + 2 && width <= kWidest; width *= 1.5) {
    kept = ThinToColumns(points, width);
  }
  return kept;
}

std::vector<Point> ThinCloud(const std::vector<Point>& points, size_t limit) {
  if (points.size() <= limit) return points;
  limit = std::max<size_t>(limit, 4);
  // Half of the limit for extremes, half for a sample.
  std::vector<bool> keep;
  for (double width = 1; width <= kWidest; width *= 1.5) {
    keep = ExtremesOfColumns(points, width);
    if (static_cast<size_t>(std::count(keep.begin(), keep.end(), true)) <= limit / 2) break;
  }
  const size_t stride = (points.size() + limit / 2 - 1) / (limit / 2);
  for (size_t i = 0; i < points.size(); i += stride) keep[i] = true;
  std::vector<Point> kept;
  for (size_t i = 0; i < points.size(); ++i) {
    if (keep[i]) kept.push_back(points[i]);
  }
  return kept;
}

}  // namespace bfio::report
