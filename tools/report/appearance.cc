#include "tools/report/appearance.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/report/numbers.h"
#include "tools/report/range.h"

namespace bfio::report {
namespace {

constexpr int kReferenceDigits = 4;
constexpr int kColors = 7;
constexpr int kDashes = 4;
// More alike series than this are a family; more distinct series than this are one too, whatever their names:
// the colours and dashes would repeat.
constexpr size_t kLargestNamedFamily = 8;
constexpr size_t kMostNamed = static_cast<size_t>(kColors) * 3;

// "worker #, max" for "worker 12, max".
std::string Pattern(absl::string_view name) {
  std::string pattern;
  for (const char c : name) {
    if (!absl::ascii_isdigit(c)) {
      pattern += c;
    } else if (!pattern.ends_with('#')) {
      pattern += '#';
    }
  }
  return pattern;
}

using Members = std::vector<size_t>;

// Indexes of the series of each family, in the order of their first members.
std::vector<Members> FindFamilies(const Chart& chart) {
  if (chart.kind == Chart::Kind::kBars) return {};
  std::map<std::string, Members> alike;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    if (!chart.series[i].strong) alike[Pattern(chart.series[i].name)].push_back(i);
  }
  std::map<size_t, Members> by_first;
  Members others;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    if (chart.series[i].strong) continue;
    const Members& members = alike[Pattern(chart.series[i].name)];
    if (members.size() > kLargestNamedFamily) {
      by_first[members.front()] = members;
    } else {
      others.push_back(i);
    }
  }
  if (others.size() > kMostNamed) by_first[others.front()] = others;
  std::vector<Members> families;
  for (const auto& [first, members] : by_first) families.push_back(members);
  return families;
}

LegendEntry EntryOf(const Chart& chart, const Series& series, const Appearance& appearance) {
  LegendEntry entry{.name = series.name, .appearance = appearance};
  if (chart.kind == Chart::Kind::kBars) {
    entry.key = LegendEntry::Key::kBar;
  } else if (series.style == Series::Style::kPoints) {
    entry.key = LegendEntry::Key::kPoints;
  }
  entry.band = entry.key == LegendEntry::Key::kLine && !series.low.empty() && !series.high.empty();
  return entry;
}

std::string FamilyName(const Chart& chart, const Members& members) {
  return absl::StrCat(chart.series[members.front()].name, " … ", chart.series[members.back()].name, " (",
                      members.size(), " series)");
}

// Bars leave no room for text in the plot; the legend names their reference lines.
void AddReferences(const Chart& chart, std::vector<LegendEntry>* legend) {
  for (const ReferenceLine& line : chart.references) {
    if (!Drawable(chart.y, line.y)) continue;
    legend->push_back({.name = ReferenceText(line), .key = LegendEntry::Key::kReference});
  }
}

}  // namespace

std::string ReferenceText(const ReferenceLine& line) {
  return absl::StrCat(line.name, line.name.empty() ? "" : ": ", Significant(line.y, kReferenceDigits));
}

std::string Appearance::Classes() const {
  std::string classes = absl::StrCat("c", color);
  if (dash > 0) absl::StrAppend(&classes, " d", dash);
  if (family) classes += " family";
  if (strong) classes += " strong";
  return classes;
}

Appearances ChooseAppearances(const Chart& chart) {
  Appearances result;
  result.of_series.resize(chart.series.size());
  const std::vector<Members> families = FindFamilies(chart);
  std::map<size_t, const Members*> family_by_first;
  for (const Members& members : families) {
    family_by_first[members.front()] = &members;
    for (const size_t i : members) result.of_series[i].family = true;
  }

  // An asked-for dash must not look like the dash of the second round of colours.
  const bool any_dashed = std::any_of(chart.series.begin(), chart.series.end(), [](const Series& series) {
    return series.style == Series::Style::kDashed;
  });
  int next = 0;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const Series& series = chart.series[i];
    Appearance& appearance = result.of_series[i];
    const auto family = family_by_first.find(i);
    if (appearance.family && family == family_by_first.end()) continue;
    if (appearance.family) {
      // A single family is the background of the others; several need telling apart.
      const int color = families.size() == 1 ? 0 : 1 + next++ % kColors;
      for (const size_t member : *family->second) result.of_series[member].color = color;
      LegendEntry entry = EntryOf(chart, series, appearance);
      entry.name = FamilyName(chart, *family->second);
      result.legend.push_back(entry);
      continue;
    }
    const int round = next / kColors % kDashes;
    appearance = {.color = 1 + next % kColors, .dash = round, .strong = series.strong};
    if (any_dashed && round > 0) appearance.dash = 1 + round % (kDashes - 1);
    if (series.style == Series::Style::kDashed && round == 0) appearance.dash = 1;
    ++next;
    result.legend.push_back(EntryOf(chart, series, appearance));
  }
  if (chart.kind == Chart::Kind::kBars) AddReferences(chart, &result.legend);
  return result;
}

}  // namespace bfio::report
