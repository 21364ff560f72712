#include "tools/report/categories.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/report/markup.h"

namespace bfio::report {
namespace {

constexpr double kLabelMargin = 4;  // left of the longest label
constexpr double kSlant = 0.5;      // sine and cosine of the 30 degrees of slanted labels
constexpr double kSlantCosine = 0.87;
constexpr double kSlantedPitch = 26;  // along the axis, so that slanted lines do not touch
constexpr size_t kLongestLabel = 26;  // characters
constexpr size_t kMostLabelLines = 3;

void PlaceCategories(size_t count, Layout* layout) {
  const double slot = (layout->right - layout->left) / static_cast<double>(count);
  layout->categories.resize(count);
  for (size_t i = 0; i < count; ++i) {
    layout->categories[i].left = layout->left + slot * static_cast<double>(i);
    layout->categories[i].right = layout->left + slot * static_cast<double>(i + 1);
  }
}

// Fills in labels, upright in lines if they fit their slots, else slanted. Returns the height they take.
double LabelCategories(const Chart& chart, Layout* layout) {
  const double slot = (layout->right - layout->left) / static_cast<double>(layout->categories.size());
  bool fits = true;
  size_t most_lines = 1;
  for (size_t i = 0; i < layout->categories.size(); ++i) {
    std::vector<std::string>& lines = layout->categories[i].lines;
    lines = WrapText(CategoryName(chart, i), slot - 6, kFontSize);
    most_lines = std::max(most_lines, lines.size());
    for (const std::string& line : lines) fits = fits && TextWidth(line, kFontSize) <= slot - 4;
  }
  if (fits && most_lines <= kMostLabelLines) return static_cast<double>(most_lines) * kLineHeight;

  layout->slanted = true;
  const auto stride = static_cast<size_t>(std::max(1.0, std::ceil(kSlantedPitch / slot)));
  double widest = 0;
  for (size_t i = 0; i < layout->categories.size(); ++i) {
    std::vector<std::string>& lines = layout->categories[i].lines;
    lines.clear();
    if (i % stride != 0) continue;
    lines.push_back(Shortened(CategoryName(chart, i), kLongestLabel));
    const double width = TextWidth(lines[0], kFontSize);
    widest = std::max(widest, width);
    // Slanted labels end below their group; the first ones reach left of the axis.
    const double reach = width * kSlantCosine + kLabelMargin - slot * (static_cast<double>(i) + 0.5);
    layout->left = std::max(layout->left, reach);
  }
  PlaceCategories(layout->categories.size(), layout);
  return kLineHeight + widest * kSlant;
}

}  // namespace

size_t CategoryCount(const Chart& chart) {
  if (!chart.x.categories.empty()) return chart.x.categories.size();
  size_t count = 0;
  for (const Series& series : chart.series) count = std::max(count, series.y.size());
  return count;
}

std::string CategoryName(const Chart& chart, size_t index) {
  return index < chart.x.categories.size() ? chart.x.categories[index] : absl::StrCat(index + 1);
}

double LayOutCategories(const Chart& chart, size_t count, Layout* layout) {
  PlaceCategories(count, layout);
  return LabelCategories(chart, layout);
}

}  // namespace bfio::report
