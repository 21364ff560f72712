#include "tools/report/lines_plot.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/report/path.h"
#include "tools/report/thin.h"

namespace bfio::report {
namespace {

// Lines with few points show where they were measured; more dots than this hide the line.
constexpr size_t kMostDottedPoints = 24;
constexpr double kCapHalf = 3.5;  // of an error bar
constexpr size_t kMostLargeDots = 300;
constexpr size_t kCloudPoints = 4;  // times as many as a line: an area to fill
// Families give way to the lines that stand out, but a line of fewer points than this would change its look:
// very many series may exceed the page's budget.
constexpr size_t kFewestPoints = 100;

class SeriesPlot {
 public:
  SeriesPlot(const Chart& chart, const Series& series, const Appearance& appearance, const Layout& layout,
             size_t limit)
      : chart_(chart),
        series_(series),
        classes_(appearance.Classes()),
        family_(appearance.family),
        layout_(layout),
        limit_(limit),
        count_(std::min(series.x.size(), series.y.size())) {}

  std::string Intervals() const {
    if (!HasIntervals()) return "";
    return series_.style == Series::Style::kPoints ? ErrorBars() : Band();
  }

  std::string Data() const {
    if (series_.style == Series::Style::kPoints) {
      const std::vector<Point> cloud = ThinCloud(AllPoints(), kCloudPoints * limit_);
      return Stroke(cloud.size() > kMostLargeDots ? "dots many" : "dots", DotPath(cloud));
    }
    std::string line;
    std::vector<Point> dots;
    for (const std::vector<Point>& run : Runs(series_.y)) {
      // A run of one point has no length: it would not be seen as a line.
      if (run.size() == 1) dots.push_back(run[0]);
      if (run.size() > 1) absl::StrAppend(&line, LinePath(Thinned(run)));
    }
    if (count_ <= kMostDottedPoints && !family_ && series_.style != Series::Style::kSteps) dots = AllPoints();
    return absl::StrCat(Stroke("line", line), Stroke("dots", DotPath(ThinCloud(dots, limit_))));
  }

 private:
  bool HasIntervals() const { return !series_.low.empty() && !series_.high.empty(); }

  std::string Stroke(absl::string_view kind, const std::string& path) const {
    return path.empty() ? "" : absl::StrCat("<path class=\"", kind, " ", classes_, "\" d=\"", path, "\"/>\n");
  }

  bool DrawableAt(size_t i, const std::vector<double>& y) const {
    return i < y.size() && Drawable(chart_.x, series_.x[i]) && Drawable(chart_.y, y[i]);
  }

  Point At(size_t i, const std::vector<double>& y) const {
    return {layout_.x.Map(series_.x[i]), layout_.y.Map(y[i])};
  }

  std::vector<Point> AllPoints() const {
    std::vector<Point> points;
    for (size_t i = 0; i < count_; ++i) {
      if (DrawableAt(i, series_.y)) points.push_back(At(i, series_.y));
    }
    return points;
  }

  // The points between gaps. Every value of `y` and, for bands, of `other` has to be drawable.
  std::vector<std::vector<Point>> Runs(const std::vector<double>& y,
                                       const std::vector<double>* other = nullptr) const {
    std::vector<std::vector<Point>> runs;
    bool gap = true;
    for (size_t i = 0; i < count_; ++i) {
      if (!DrawableAt(i, y) || (other != nullptr && !DrawableAt(i, *other))) {
        gap = true;
        continue;
      }
      if (gap) runs.emplace_back();
      gap = false;
      const Point point = At(i, y);
      std::vector<Point>& run = runs.back();
      if (series_.style == Series::Style::kSteps && !run.empty()) run.push_back({point.x, run.back().y});
      run.push_back(point);
    }
    return runs;
  }

  // A run's share of the series' points.
  std::vector<Point> Thinned(const std::vector<Point>& run) const {
    const size_t points_of_all = series_.style == Series::Style::kSteps ? 2 * count_ : count_;
    return ThinLine(run, std::max<size_t>(2, limit_ * run.size() / points_of_all));
  }

  std::string Band() const {
    const std::vector<std::vector<Point>> low = Runs(series_.low, &series_.high);
    const std::vector<std::vector<Point>> high = Runs(series_.high, &series_.low);
    std::string path;
    for (size_t i = 0; i < low.size(); ++i)
      absl::StrAppend(&path, AreaPath(Thinned(high[i]), Thinned(low[i])));
    return Stroke("band", path);
  }

  std::string ErrorBars() const {
    std::string path;
    size_t drawn = 0;
    for (size_t i = 0; i < count_ && drawn < limit_; ++i) {
      if (!DrawableAt(i, series_.low) || !DrawableAt(i, series_.high)) continue;
      const Point low = At(i, series_.low);
      const Point high = At(i, series_.high);
      absl::StrAppend(&path, VerticalStroke(low.x, low.y, high.y));
      absl::StrAppend(&path, HorizontalStroke(low.y, low.x - kCapHalf, low.x + kCapHalf));
      absl::StrAppend(&path, HorizontalStroke(high.y, high.x - kCapHalf, high.x + kCapHalf));
      ++drawn;
    }
    return Stroke("error", path);
  }

  const Chart& chart_;
  const Series& series_;
  const std::string classes_;
  const bool family_;
  const Layout& layout_;
  const size_t limit_;  // points
  const size_t count_;
};

// Behind to in front.
int Level(const Appearance& appearance) {
  return appearance.strong ? 2 : appearance.family ? 0 : 1;
}

struct Limits {
  size_t of_family_member;
  size_t of_other;
};

// Lines that stand out may have two points per unit of width; families share what is left.
Limits ShareOut(const Appearances& appearances, const Layout& layout) {
  size_t members = 0;
  for (const Appearance& appearance : appearances.of_series) members += appearance.family ? 1 : 0;
  const size_t others = appearances.of_series.size() - members;
  const auto whole = static_cast<size_t>(2 * (layout.right - layout.left));
  const size_t of_other = std::min(whole, layout.size.points / std::max<size_t>(1, others));
  const size_t left = layout.size.points - of_other * others;
  const size_t of_member = std::min(whole, left / std::max<size_t>(1, members));
  return {std::max(kFewestPoints, of_member), std::max(kFewestPoints, of_other)};
}

}  // namespace

std::string LinesPlot(const Chart& chart, const Appearances& appearances, const Layout& layout) {
  const Limits limits = ShareOut(appearances, layout);
  std::string intervals;
  std::string levels[3];
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const Appearance& appearance = appearances.of_series[i];
    const SeriesPlot plot(chart, chart.series[i], appearance, layout,
                          appearance.family ? limits.of_family_member : limits.of_other);
    absl::StrAppend(&intervals, plot.Intervals());
    absl::StrAppend(&levels[Level(appearance)], plot.Data());
  }
  return absl::StrCat(intervals, levels[0], levels[1], levels[2]);
}

}  // namespace bfio::report
