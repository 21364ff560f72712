// What a chart's figure contains, for ordinary data and for invalid data.
#include "tools/report/chart.h"

#include <cmath>
#include <limits>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/report/well_formed.h"
#include "tools/report/appearance.h"
#include "tools/report/figure.h"

namespace bfio::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kMax = std::numeric_limits<double>::max();

Chart Base(Chart::Kind kind = Chart::Kind::kLines) {
  return {.title = "Load",
          .kind = kind,
          .x = {.label = "Step", .unit = "steps"},
          .y = {.label = "KV", .unit = "tokens"}};
}

Series Line(std::string name, std::vector<double> y) {
  Series series{.name = std::move(name)};
  for (size_t i = 0; i < y.size(); ++i) series.x.push_back(static_cast<double>(i));
  series.y = std::move(y);
  return series;
}

// The first drawing, checked to be sound.
std::string Drawing(const Chart& chart) {
  const std::vector<std::string> svgs = Svgs(Figure(chart, "chart-1"));
  EXPECT_EQ(svgs.size(), 2u);
  for (const std::string& svg : svgs) {
    EXPECT_EQ(XmlError(svg), "");
    const std::string lower = absl::AsciiStrToLower(svg);
    EXPECT_THAT(lower, Not(HasSubstr("nan")));
    EXPECT_FALSE(std::regex_search(lower, std::regex("[^a-z]inf[^a-z]")));
    EXPECT_THAT(svg, HasSubstr("class=\"axis-title x"));
    EXPECT_THAT(svg, HasSubstr("class=\"axis-title y"));
  }
  return svgs.empty() ? "" : svgs[0];
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// The path data of the first element of these classes.
std::string PathOf(const std::string& svg, const std::string& classes) {
  const std::string start = absl::StrCat("<path class=\"", classes, "\" d=\"");
  const size_t at = svg.find(start);
  if (at == std::string::npos) return "";
  const size_t begin = at + start.size();
  return svg.substr(begin, svg.find('"', begin) - begin);
}

TEST(ChartTest, AxesNameLabelAndUnit) {
  const std::string svg = Drawing(Base());
  EXPECT_THAT(svg, HasSubstr(">Step [steps]</text>"));
  EXPECT_THAT(svg, HasSubstr(">KV [tokens]</text>"));
}

TEST(ChartTest, EveryDrawingIsTitledAndDescribed) {
  Chart chart = Base();
  chart.series = {Line("fcfs", {1, 2})};
  const std::string svg = Drawing(chart);
  EXPECT_THAT(svg, HasSubstr("aria-labelledby=\"chart-1-wide-title chart-1-wide-desc\""));
  EXPECT_THAT(svg, HasSubstr("<title id=\"chart-1-wide-title\">Load</title>"));
  EXPECT_THAT(svg, HasSubstr("Line chart of KV [tokens] over Step [steps]. 1 series: fcfs."));
}

TEST(ChartTest, NothingToDrawSaysSo) {
  for (const auto kind : {Chart::Kind::kLines, Chart::Kind::kBars}) {
    Chart chart = Base(kind);
    EXPECT_THAT(Drawing(chart), HasSubstr("no data"));
    chart.series = {Line("empty", {}), Line("nothing finite", {kNan, HUGE_VAL, -HUGE_VAL})};
    EXPECT_THAT(Drawing(chart), HasSubstr("no data"));
  }
}

TEST(ChartTest, OddDataIsDrawnSoundly) {
  const std::vector<std::vector<double>> cases = {
      {5},           {0, 0, 0}, {-3, -1}, {kMax, -kMax}, {5e-324, 0}, {1e15, 1e15 + 1}, {kNan, 1, kNan},
      {-1e-9, 1e-9}, {1e300, 1}};
  for (const auto style :
       {Series::Style::kLine, Series::Style::kDashed, Series::Style::kPoints, Series::Style::kSteps}) {
    for (const std::vector<double>& y : cases) {
      for (const bool log : {false, true}) {
        Chart chart = Base();
        chart.x.log = chart.y.log = log;
        chart.series = {Line("odd", y)};
        chart.series[0].style = style;
        chart.series[0].low = chart.series[0].high = y;
        chart.references = {{"odd", y[0]}};
        Drawing(chart);
        chart.kind = Chart::Kind::kBars;
        Drawing(chart);
      }
    }
  }
}

TEST(ChartTest, ValuesThatAreNotFiniteLeaveGaps) {
  Chart chart = Base();
  chart.series = {Line("s", {1, 2, kNan, 3, 4, HUGE_VAL, 5, 6})};
  chart.series[0].x[7] = 7;
  EXPECT_EQ(Count(PathOf(Drawing(chart), "line c1"), "M"), 3);
}

TEST(ChartTest, APointBetweenGapsIsStillSeen) {
  Chart chart = Base();
  chart.series = {Line("s", std::vector<double>(100, kNan))};
  chart.series[0].y[50] = 7;
  EXPECT_EQ(Count(PathOf(Drawing(chart), "dots c1"), "h0"), 1);
}

TEST(ChartTest, LogAxesLeaveOutWhatIsNotPositive) {
  Chart chart = Base();
  chart.y.log = true;
  chart.series = {Line("s", {1, 10, 0, 100, -1, 1000})};
  EXPECT_EQ(Count(PathOf(Drawing(chart), "dots c1"), "h0"), 4);
}

TEST(ChartTest, LongSeriesAreThinnedAndKeepTheirPeak) {
  Chart chart = Base();
  std::vector<double> y(100000);
  for (size_t i = 0; i < y.size(); ++i) y[i] = std::sin(static_cast<double>(i) * 0.37);
  y[31415] = 10;
  chart.series = {Line("s", y)};
  chart.y.min = -1;
  chart.y.max = 10;
  const std::string svg = Drawing(chart);
  EXPECT_LT(svg.size(), 25000u);
  const std::string line = PathOf(svg, "line c1");
  chart.series[0].y[31415] = 1;
  EXPECT_NE(line, PathOf(Drawing(chart), "line c1"));
}

TEST(ChartTest, ManyAlikeSeriesShareOneLegendEntry) {
  Chart chart = Base();
  for (int g = 0; g < 256; ++g) chart.series.push_back(Line(absl::StrCat("worker ", g), {1.0 * g, 2.0 * g}));
  chart.series.push_back(Line("maximum", {255, 510}));
  chart.series.back().strong = true;
  const Appearances appearances = ChooseAppearances(chart);
  ASSERT_EQ(appearances.legend.size(), 2u);
  EXPECT_EQ(appearances.legend[0].name, "worker 0 … worker 255 (256 series)");
  EXPECT_EQ(appearances.legend[1].name, "maximum");
  const std::string svg = Drawing(chart);
  EXPECT_GT(svg.find("line c1 strong"), svg.rfind("line c0 family"));  // drawn on top
}

TEST(ChartTest, TwentyNamedSeriesLookDifferent) {
  Chart chart = Base();
  for (char c = 'a'; c < 'a' + 20; ++c)
    chart.series.push_back(Line(absl::StrCat("policy ", std::string(1, c)), {1, 2}));
  chart.series[1].style = Series::Style::kDashed;
  const Appearances appearances = ChooseAppearances(chart);
  ASSERT_EQ(appearances.legend.size(), 20u);
  std::vector<std::string> classes;
  for (const Appearance& appearance : appearances.of_series) {
    EXPECT_THAT(classes, Not(::testing::Contains(appearance.Classes())));
    classes.push_back(appearance.Classes());
  }
}

TEST(ChartTest, BarsAreGroupedWithErrorBarsAndMissingOnesLeaveTheirPlace) {
  Chart chart = Base(Chart::Kind::kBars);
  chart.x.categories = {"normal", "bursty"};
  chart.series = {Line("fcfs", {1, 2}), Line("bf_io", {kNan, 3})};
  chart.series[0].low = {0.5, 1.5};
  chart.series[0].high = {1.5, 2.5};
  const std::string svg = Drawing(chart);
  EXPECT_EQ(Count(svg, "<rect class=\"bar"), 3);
  EXPECT_EQ(Count(PathOf(svg, "error"), "V"), 2);
  EXPECT_THAT(svg, HasSubstr("<title>bf_io, bursty: 3.000 tokens</title>"));
}

TEST(ChartTest, ReferenceLinesAreNamedWithTheirValue) {
  Chart chart = Base();
  chart.series = {Line("s", {1, 2})};
  chart.references = {{"published", 1.5}, {"nearly the same", 1.501}, {"not finite", kNan}};
  const std::string svg = Drawing(chart);
  EXPECT_THAT(svg, HasSubstr(">published: 1.500</text>"));
  // Below, not over, the other.
  const std::regex place("<text class=\"reference\" x=\"([0-9.]+)\" y=\"([0-9.]+)\"");
  std::sregex_iterator name(svg.begin(), svg.end(), place);
  ASSERT_NE(name, std::sregex_iterator());
  const double first = std::stod((*name++)[2]);
  ASSERT_NE(name, std::sregex_iterator());
  EXPECT_GE(std::stod((*name)[2]), first + 14);
  EXPECT_THAT(svg, Not(HasSubstr("not finite")));
}

TEST(ChartTest, WholeStepsHaveNoTicksBetweenThemAndSweepsHaveTheirs) {
  Chart chart = Base();
  chart.series = {Line("s", {1, 2, 3})};
  EXPECT_FALSE(std::regex_search(Drawing(chart), std::regex("class=\"tick x\"[^>]*>[0-9]*\\.5<")));
  chart.x.log = true;
  chart.series[0].x = {4, 16, 64};
  const std::string svg = Drawing(chart);
  for (const char* tick : {">4</text>", ">16</text>", ">64</text>"}) EXPECT_THAT(svg, HasSubstr(tick));
}

TEST(ChartTest, TextCannotBreakOut) {
  const std::string evil = "</title></svg><script>alert('x')</script>&\"\x01";
  Chart chart = Base(Chart::Kind::kBars);
  chart.title = chart.note = chart.x.label = chart.x.unit = chart.y.label = chart.y.unit = evil;
  chart.x.categories = {evil};
  chart.series = {Line(evil, {1})};
  chart.references = {{evil, 1}};
  Drawing(chart);
  EXPECT_THAT(Figure(chart, "chart-1"), Not(HasSubstr("<script")));
}

TEST(ChartTest, TheNumbersAreThereAsATable) {
  Chart chart = Base();
  chart.series = {Line("fcfs", {1.25, 2.5}), Line("bf_io", {3, 4})};
  EXPECT_THAT(Figure(chart, "chart-1"), HasSubstr("<td>1.0000</td><td>2.5000</td><td>4.0000</td>"));
  chart.series = {Line("long", std::vector<double>(1000, 2.0))};
  EXPECT_THAT(Figure(chart, "chart-1"),
              HasSubstr("<th scope=\"row\" class=\"text\">long</th><td>1,000</td><td>2.0000</td>"));
}

TEST(ChartTest, SameDataSameBytes) {
  Chart chart = Base();
  for (int g = 0; g < 20; ++g) chart.series.push_back(Line(absl::StrCat("s", g), {1.0 * g, 2, 3}));
  EXPECT_EQ(Figure(chart, "chart-1"), Figure(chart, "chart-1"));
}

}  // namespace
}  // namespace bfio::report
