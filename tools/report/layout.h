// Where the parts of one drawing of a chart are.
//
// Purpose: everything that is drawn inside the axes asks this for positions, and knows nothing of labels and
// margins. Threads: plain values. Units: SVG user units.
#ifndef BFIO_TOOLS_REPORT_LAYOUT_H_
#define BFIO_TOOLS_REPORT_LAYOUT_H_

#include <string>
#include <vector>

#include "tools/report/chart.h"
#include "tools/report/range.h"
#include "tools/report/ticks.h"

namespace bfio::report {

inline constexpr double kFontSize = 12;
inline constexpr double kLineHeight = 15;

// Every chart is drawn twice: scaling one drawing down to a phone would leave its text too small to read.
struct Size {
  double width;
  double height;
  size_t points;  // about how many points all series together may have: bounds the page
};
inline constexpr Size kWide = {760, 360, 24000};
inline constexpr Size kNarrow = {380, 300, 8000};

struct Category {
  double left, right;
  std::vector<std::string> lines;  // what is written below; empty where there is no room
};

struct Layout {
  Size size;
  double left, top, right, bottom;  // of the plot area; top < bottom
  Ticks x_ticks;                    // empty for categories
  Ticks y_ticks;
  std::vector<Category> categories;  // empty for lines
  bool slanted = false;              // category labels
  double x_title_y;                  // baseline of the title below the x axis
  std::vector<std::string> x_title, y_title;
  Scale x, y;
};

Layout MakeLayout(const Chart& chart, const Size& size);

}  // namespace bfio::report

#endif  // BFIO_TOOLS_REPORT_LAYOUT_H_
