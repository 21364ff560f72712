#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "chains/plan/output.h"

namespace bfio::plan {
namespace {

// In SVG user units.
constexpr double kLeft = 150, kWidth = 760, kTop = 34, kRow = 20, kBar = 14, kLegendRow = 18, kRight = 20;
// The most chains that are drawn, the fastest first: more colours cannot be distinguished. For the others
// only the hosted blocks are shown.
constexpr size_t kMostChains = 7;
constexpr const char* kColors[kMostChains] = {"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                              "#56b4e9", "#d55e00", "#8a7f00"};

constexpr size_t kLongestName = 20;

// A tenth of a unit is finer than a pixel.
std::string Coordinate(double value) {
  return absl::StrFormat("%.1f", value);
}

// Escapes `text`, which is UTF-8, for XML, and removes control characters, which XML does not allow.
std::string Escape(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

std::string Shortened(const std::string& name) {
  size_t characters = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(name[i]) & 0xC0) != 0x80;
    if (begins && ++characters > kLongestName) return absl::StrCat(name.substr(0, i), "…");
  }
  return name;
}

class Picture {
 public:
  Picture(const Problem& problem, const Plan& plan)
      : problem_(problem),
        plan_(plan),
        drawn_(std::min(plan.chosen.chains.size(), kMostChains)),
        per_block_(kWidth / problem.service.blocks) {
    for (size_t j = 0; j < problem.servers.size(); ++j) {
      if (plan.chosen.placement.ranges[j].count > 0) rows_.push_back(static_cast<int32_t>(j));
    }
    // Rows are sorted by their blocks, so that a chain runs downwards.
    std::stable_sort(rows_.begin(), rows_.end(), [&](int32_t a, int32_t b) {
      return plan.chosen.placement.ranges[a].first < plan.chosen.placement.ranges[b].first;
    });
  }

  std::string Draw() {
    const double rows = static_cast<double>(rows_.size());
    const double height = kTop + kRow * rows + 30 + kLegendRow * static_cast<double>(drawn_ + 1);
    std::string svg = absl::StrFormat(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %s %s\" role=\"img\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n<title>Chains over servers</title>\n"
        "<style>text{fill:#222}.host{fill:#ddd}.axis{stroke:#888}@media (prefers-color-scheme:dark)"
        "{text{fill:#eee}.host{fill:#444}}</style>\n",
        Coordinate(kLeft + kWidth + kRight), Coordinate(height));
    absl::StrAppend(&svg, Axis());
    for (size_t r = 0; r < rows_.size(); ++r) absl::StrAppend(&svg, Row(r));
    absl::StrAppend(&svg, Legend(kTop + kRow * rows + 24), "</svg>\n");
    return svg;
  }

 private:
  static std::string Text(double x, double y, const char* anchor, const std::string& text) {
    return absl::StrFormat("<text x=\"%s\" y=\"%s\" text-anchor=\"%s\">%s</text>\n", Coordinate(x),
                           Coordinate(y), anchor, Escape(text));
  }
  static std::string Bar(double x, double y, double width, double height, absl::string_view attribute) {
    return absl::StrFormat("<rect x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\" %s/>\n", Coordinate(x),
                           Coordinate(y), Coordinate(width), Coordinate(height), attribute);
  }

  std::string Axis() const {
    std::string svg = Text(kLeft - 8, 16, "end", "block");
    const int32_t step = std::max(1, problem_.service.blocks / 10);
    for (int32_t b = 0; b < problem_.service.blocks; b += step) {
      const double x = kLeft + per_block_ * b;
      absl::StrAppend(&svg, Text(x, 16, "middle", absl::StrCat(b)));
      absl::StrAppendFormat(&svg, "<path class=\"axis\" d=\"M%s 22v6\"/>\n", Coordinate(x));
    }
    return svg;
  }

  // A server's hosted blocks, with strips for the blocks that chains process there.
  std::string Row(size_t r) const {
    const int32_t j = rows_[r];
    const BlockRange& range = plan_.chosen.placement.ranges[j];
    const double y = kTop + kRow * static_cast<double>(r);
    std::string svg = absl::StrCat(
        Text(kLeft - 8, y + 11, "end", Shortened(problem_.servers[j].name)),
        Bar(kLeft + per_block_ * range.first, y, per_block_ * range.count, kBar, "class=\"host\""));
    const double strip = kBar / static_cast<double>(drawn_);
    for (size_t k = 0; k < drawn_; ++k) {
      for (const core::ChainHop& hop : plan_.chosen.chains[k].hops) {
        if (hop.server != j) continue;
        absl::StrAppend(&svg,
                        Bar(kLeft + per_block_ * hop.range.first, y + strip * static_cast<double>(k),
                            per_block_ * hop.range.count, strip, absl::StrCat("fill=\"", kColors[k], "\"")));
      }
    }
    return svg;
  }

  std::string Legend(double y) const {
    std::string svg;
    for (size_t k = 0; k < drawn_; ++k, y += kLegendRow) {
      const core::ServerChain& chain = plan_.chosen.chains[k];
      absl::StrAppend(&svg, Bar(kLeft, y - 9, 24, 9, absl::StrCat("fill=\"", kColors[k], "\"")),
                      Text(kLeft + 32, y, "start",
                           absl::StrFormat("chain %d: %.4g s, %d jobs at once, %d servers", k + 1, chain.time,
                                           chain.capacity, chain.hops.size())));
    }
    const size_t more = plan_.chosen.chains.size() - drawn_;
    return absl::StrCat(svg,
                        Text(kLeft, y, "start",
                             absl::StrCat(more > 0 ? absl::StrCat(more, " slower chains not drawn; ") : "",
                                          "grey: hosted blocks")));
  }

  const Problem& problem_;
  const Plan& plan_;
  const size_t drawn_;
  const double per_block_;
  std::vector<int32_t> rows_;
};

}  // namespace

std::string PlanSvg(const Problem& problem, const Plan& plan) {
  return Picture(problem, plan).Draw();
}

}  // namespace bfio::plan
