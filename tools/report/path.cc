#include "tools/report/path.h"

#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/report/numbers.h"

namespace bfio::report {
namespace {

// Tenths of a unit: differences of rounded positions do not add up their rounding errors.
int64_t Tenths(double value) {
  return std::llround(value * 10);
}

void AppendTenths(int64_t tenths, bool separate, std::string* path) {
  const uint64_t size = tenths < 0 ? -static_cast<uint64_t>(tenths) : static_cast<uint64_t>(tenths);
  if (tenths < 0) {
    *path += '-';
  } else if (separate) {
    *path += ' ';
  }
  const uint64_t whole = size / 10;
  const uint64_t tenth = size % 10;
  if (whole > 0 || tenth == 0) absl::StrAppend(path, whole);
  if (tenth > 0) absl::StrAppend(path, ".", tenth);
}

// Relative moves from point to point under one command letter.
void AppendSteps(const std::vector<Point>& points, absl::string_view first_command, std::string* path) {
  int64_t x = 0;
  int64_t y = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    const int64_t next_x = Tenths(points[i].x);
    const int64_t next_y = Tenths(points[i].y);
    if (i == 0) absl::StrAppend(path, first_command);
    if (i == 1) absl::StrAppend(path, "l");
    AppendTenths(next_x - x, i > 1, path);
    AppendTenths(next_y - y, true, path);
    x = next_x;
    y = next_y;
  }
}

}  // namespace

std::string LinePath(const std::vector<Point>& points) {
  std::string path;
  AppendSteps(points, "M", &path);
  return path;
}

std::string AreaPath(const std::vector<Point>& upper, const std::vector<Point>& lower) {
  std::string path;
  AppendSteps(upper, "M", &path);
  AppendSteps(std::vector<Point>(lower.rbegin(), lower.rend()), "L", &path);
  return path.empty() ? path : path + 'Z';
}

std::string DotPath(const std::vector<Point>& points) {
  std::string path;
  for (const Point& point : points) absl::StrAppend(&path, LinePath({point}), "h0");
  return path;
}

std::string VerticalStroke(double x, double from, double to) {
  return absl::StrCat("M", Coordinate(x), " ", Coordinate(from), "V", Coordinate(to));
}

std::string HorizontalStroke(double y, double from, double to) {
  return absl::StrCat("M", Coordinate(from), " ", Coordinate(y), "H", Coordinate(to));
}

}  // namespace bfio::report
