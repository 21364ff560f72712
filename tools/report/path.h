// Points as the text of an SVG path, as short as a tenth of a unit allows.
//
// Threads: pure functions. Units: SVG user units.
#ifndef BFIO_TOOLS_REPORT_PATH_H_
#define BFIO_TOOLS_REPORT_PATH_H_

#include <string>
#include <vector>

#include "tools/report/thin.h"

namespace bfio::report {

// "M10 20l5-3 2 4": a polyline. Empty without points.
std::string LinePath(const std::vector<Point>& points);

// The area between `upper` and `lower`, which run the same way.
std::string AreaPath(const std::vector<Point>& upper, const std::vector<Point>& lower);

// One zero-length stroke per point: a dot, if line caps are round.
std::string DotPath(const std::vector<Point>& points);

// "M10 20V30": one vertical or horizontal stroke.
std::string VerticalStroke(double x, double from, double to);
std::string HorizontalStroke(double y, double from, double to);

}  // namespace bfio::report

#endif  // BFIO_TOOLS_REPORT_PATH_H_
