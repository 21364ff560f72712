#include "tools/report/figure.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "tools/report/appearance.h"
#include "tools/report/chart_svg.h"
#include "tools/report/chart_table.h"
#include "tools/report/layout.h"
#include "tools/report/markup.h"
#include "tools/report/table_html.h"

namespace bfio::report {
namespace {

constexpr size_t kMostInARow = 8;

absl::string_view KeyClass(LegendEntry::Key key) {
  switch (key) {
    case LegendEntry::Key::kLine:
      return "key-line";
    case LegendEntry::Key::kPoints:
      return "key-points";
    case LegendEntry::Key::kBar:
      return "key-bar";
    case LegendEntry::Key::kReference:
      return "key-reference";
  }
  return "";
}

std::string Legend(const Appearances& appearances) {
  std::string items;
  for (const LegendEntry& entry : appearances.legend) {
    if (entry.name.empty()) continue;
    absl::StrAppend(&items, "<li><span class=\"key ", KeyClass(entry.key), " ", entry.appearance.Classes(),
                    entry.band ? " key-band" : "", "\"></span>", Escape(entry.name), "</li>\n");
  }
  // Many entries are found more easily in columns.
  const absl::string_view many = appearances.legend.size() > kMostInARow ? " many" : "";
  return items.empty() ? "" : absl::StrCat("<ul class=\"legend", many, "\">\n", items, "</ul>\n");
}

}  // namespace

std::string Figure(const Chart& chart, absl::string_view id) {
  const Appearances appearances = ChooseAppearances(chart);
  const std::string note =
      chart.note.empty() ? "" : absl::StrCat("<p class=\"note\">", Escape(chart.note), "</p>\n");
  return absl::StrCat("<figure id=\"", id, "\" aria-labelledby=\"", id, "-caption\">\n<figcaption id=\"", id,
                      "-caption\">", Escape(chart.title), "</figcaption>\n", Legend(appearances),
                      ChartSvg(chart, appearances, kWide, absl::StrCat(id, "-wide"), "wide"),
                      ChartSvg(chart, appearances, kNarrow, absl::StrCat(id, "-narrow"), "narrow"), note,
                      "<details><summary>Show the numbers</summary>\n", TableHtml(ChartTable(chart)),
                      "</details>\n</figure>\n");
}

}  // namespace bfio::report
