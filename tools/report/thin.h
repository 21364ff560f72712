// Fewer points with the same picture.
//
// Purpose: a series of 100,000 points on 700 pixels needs no more than the lowest and the highest point of
// each pixel column; keeping those two, no peak is lost. Threads: pure functions. Units: SVG user units.
#ifndef BFIO_TOOLS_REPORT_THIN_H_
#define BFIO_TOOLS_REPORT_THIN_H_

#include <cstddef>
#include <vector>

namespace bfio::report {

struct Point {
  double x;
  double y;
  friend bool operator==(const Point&, const Point&) = default;
};

// Of a line's points, in their order: the first, the last, and the lowest and highest of each run of points
// within one column. Columns are one unit wide, or wider where about `limit` points would not do otherwise
// (so a limit below some dozens is not met by a line that goes back and forth in x). Lines within the limit
// stay as they are.
std::vector<Point> ThinLine(const std::vector<Point>& points, size_t limit);

// Of a cloud's points, in their order, at most about `limit`: the lowest and highest of each column, and
// every n-th of all, so that dense parts still look dense.
std::vector<Point> ThinCloud(const std::vector<Point>& points, size_t limit);

}  // namespace bfio::report

#endif  // BFIO_TOOLS_REPORT_THIN_H_
