// The groups of a bar chart along its x axis, and what is written below them.
//
// Threads: pure functions. Units: SVG user units.
#ifndef BFIO_TOOLS_REPORT_CATEGORIES_H_
#define BFIO_TOOLS_REPORT_CATEGORIES_H_

#include <cstddef>
#include <string>

#include "tools/report/chart.h"
#include "tools/report/layout.h"

namespace bfio::report {

// How many groups of bars a chart has.
size_t CategoryCount(const Chart& chart);
// Their names; numbers from 1 where the axis gives none.
std::string CategoryName(const Chart& chart, size_t index);

// Divides the plot between layout->left and layout->right among `count` groups and writes their names,
// slanted if they are wider than a group; then left may move to make room. Returns the height the names take.
// REQUIRES: count > 0.
double LayOutCategories(const Chart& chart, size_t count, Layout* layout);

}  // namespace bfio::report

#endif  // BFIO_TOOLS_REPORT_CATEGORIES_H_
