// Which colour, dash and weight each series of a chart gets, and what the legend says about it.
//
// Purpose: seven colours that colour-blind readers can tell apart (after Okabe and Ito), then the same with
// other dashes. Many alike series ("worker 0" to "worker 255") are one family: thin lines of one colour under
// one entry, so that the few others stand out. Threads: pure functions.
#ifndef BFIO_TOOLS_REPORT_APPEARANCE_H_
#define BFIO_TOOLS_REPORT_APPEARANCE_H_

#include <string>
#include <vector>

#include "tools/report/chart.h"

namespace bfio::report {

// Looks are CSS classes: "c1" to "c7", "c0" the quiet one; "d1" to "d3" dashes, 0 none (style.cc defines
// them).
struct Appearance {
  int color = 0;
  int dash = 0;
  bool family = false;
  bool strong = false;

  // "c2 d1 strong"
  std::string Classes() const;
};

struct LegendEntry {
  enum class Key { kLine, kPoints, kBar, kReference };
  std::string name;
  Appearance appearance;
  Key key = Key::kLine;
  bool band = false;
};

struct Appearances {
  std::vector<Appearance> of_series;  // as many as the chart has series
  std::vector<LegendEntry> legend;
};

// "published: 3,200".
std::string ReferenceText(const ReferenceLine& line);

Appearances ChooseAppearances(const Chart& chart);

}  // namespace bfio::report

#endif  // BFIO_TOOLS_REPORT_APPEARANCE_H_
