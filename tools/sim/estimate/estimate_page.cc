#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"
#include "tools/sim/estimate/estimate.h"

namespace bfio::sim {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kHead[] =
    R"(<!doctype html><html lang="en"><meta charset="utf-8"><title>Would bfio help?</title>
<style>:root{color-scheme:light dark;--bar:#4a7db5;--worse:#b5564a;--better:#3f8f5f}body{font:16px/1.5 system-ui,sans-serif;
max-width:52em;margin:2em auto;padding:0 1em}table{border-collapse:collapse;width:100%}td,th{text-align:right;padding:.25em .6em;
border-bottom:1px solid #8884}td:first-child,th:first-child{text-align:left}svg{width:100%;height:auto}text{fill:currentColor;
font:12px system-ui,sans-serif}.bar{fill:var(--bar)}.axis{stroke:currentColor;stroke-width:1;opacity:.5}.better{stroke:var(--better);
fill:var(--better)}.worse{stroke:var(--worse);fill:var(--worse)}</style>)";

// What a figure is called, and its factor; less is better except for tokens.
struct Figure {
  const char *key, *name;
  double factor;
};
constexpr Figure kFigures[] = {
    {"e2e_s", "end to end, mean, s", 1},      {"e2e_p99_s", "end to end, p99, s", 1},
    {"ttft_s", "first token, mean, s", 1},    {"ttft_p99_s", "first token, p99, s", 1},
    {"tpot_s", "per token, mean, ms", 1e3},   {"step_s", "step, mean, ms", 1e3},
    {"tokens_per_s", "tokens per second", 1}, {"idle", "waiting for the slowest rank, %", 100}};

// A bar per rank and a line at the mean.
std::string Bars(const Json& values) {
  constexpr int kWidth = 640, kHeight = 160;
  double most = 1, sum = 0;
  for (const double value : values) most = std::max(most, value), sum += value;
  const auto count = static_cast<double>(values.size());
  std::string svg = absl::StrFormat(
      "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"KV tokens of each rank\">", kWidth, kHeight + 20);
  for (size_t g = 0; g < values.size(); ++g) {
    const double height = kHeight * values[g].get<double>() / most,
                 at = kWidth * static_cast<double>(g) / count;
    absl::StrAppendFormat(&svg,
                          "<rect class=\"bar\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/><text "
                          "x=\"%.1f\" y=\"%d\">%d</text>",
                          at, kHeight - height, 0.8 * kWidth / count, height, at, kHeight + 15, g);
  }
  const double mean = kHeight * (1 - sum / count / most);
  return svg +
         absl::StrFormat(
             "<line class=\"axis\" x1=\"0\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke-dasharray=\"4\"/></svg>",
             kWidth, mean, mean);
}

// The ratio and its range between half and twice, on a logarithmic axis.
std::string Ratio(const Json& change, bool more_is_better) {
  const auto at = [](double ratio) { return 100 + 100 * std::clamp(std::log2(ratio), -1.0, 1.0); };
  const double mean = change["mean"];
  const double change_for_better = more_is_better ? mean - 1 : 1 - mean;
  const char* const kind = std::abs(change_for_better) < 0.005 ? "axis"
                           : change_for_better > 0             ? "better"
                                                               : "worse";
  return absl::StrFormat(
      "<svg viewBox=\"0 0 200 20\" style=\"width:12em\" role=\"img\" aria-label=\"%.2f\"><line "
      "class=\"axis\" x1=\"100\" x2=\"100\" y1=\"0\" "
      "y2=\"20\"/><g class=\"%s\"><line x1=\"%.1f\" x2=\"%.1f\" y1=\"10\" y2=\"10\" "
      "stroke-width=\"3\"/><circle cx=\"%.1f\" cy=\"10\" "
      "r=\"4\"/></g></svg>",
      mean, kind, at(change["least"]), at(change["most"]), at(mean));
}

}  // namespace

std::string LoadOf(const Json& estimate) {
  const double load = 100 * estimate.at("load").get<double>();
  return estimate.at("closed").get<bool>()
             ? absl::StrFormat("Nearly all slots are in use; there are requests for %.0f %% of them", load)
             : absl::StrFormat("The load is %.0f %% of what balanced ranks could serve", load);
}

std::string EstimatePage(const Json& json) {
  const Json& is = json["measured"];
  const auto of = [&](const char* key) { return is.value(key, 0.0); };
  const auto safe = [](const std::string& text) {
    return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
  };
  std::string page = kHead, why = json["why"];
  why[0] = absl::ascii_toupper(static_cast<unsigned char>(why[0]));
  absl::StrAppend(&page, "<h1>Would bfio help? ", safe(json["answer"]), "</h1><p>", safe(why), ".</p>");
  absl::StrAppendFormat(&page,
                        "<h2>What was measured</h2><p>%d ranks for %.0f seconds: %.3g requests per second, "
                        "with %.0f prompt tokens (%.0f %% of "
                        "them cached) and %.0f output tokens on average. A step took %.3g ms. KV tokens of "
                        "each rank, on average; the line is their "
                        "mean. At each moment some rank has more: the fullest of the moment has %.1f %% more "
                        "than the mean:</p>%s",
                        is["ranks"].get<int>(), of("seconds"), of("requests_per_s"), of("prompt_tokens"),
                        100 * of("cached"), of("output_tokens"), 1e3 * of("step_s"),
                        100 * (of("most_kv") / std::max(1.0, of("mean_kv")) - 1), Bars(is["kv"]));
  if (!json.contains("model")) return page + "</html>";
  absl::StrAppendFormat(&page,
                        "<h2>What would change</h2><p>Simulated %d times, with the lengths, the rate and the "
                        "step cost of the measurement. %s. "
                        "Compare the first two columns: the simulation can be trusted as far as it is like "
                        "the measurement. The "
                        "picture shows the ratio between half and twice, with its "
                        "range.</p><table><tr><th><th>measured<th>simulated"
                        "<th>with bfio<th>ratio<th></tr>",
                        json["runs"].get<int>(), LoadOf(json));
  for (const Figure& figure : kFigures) {
    const auto number = [&](const Json& from) {
      return from.contains(figure.key)
                 ? absl::StrFormat("%.4g", figure.factor * from[figure.key].get<double>())
                 : "";
    };
    const auto change = json["change"].find(figure.key);
    const bool known = change != json["change"].end();
    absl::StrAppend(&page, "<tr><td>", figure.name, "<td>", number(is), "<td>", number(json["model"]), "<td>",
                    number(json["bfio"]), "<td>",
                    known ? absl::StrFormat("%.2f", (*change)["mean"].get<double>()) : "", "<td>",
                    known ? Ratio(*change, absl::string_view(figure.key) == "tokens_per_s") : "", "</tr>");
  }
  return page + "</table></html>";
}

}  // namespace bfio::sim
