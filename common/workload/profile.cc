// Built-in length profiles: quantile tables, drawn by inverting them.
#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/rng.h"
#include "common/workload/trace.h"

namespace bfio {
namespace {

struct Quantile {
  double probability;
  double tokens;
};

// Quantiles of the 19,366 requests of the Azure LLM inference trace 2023, conversation part (Azure Public
// Dataset, CC-BY; Patel et al., "Splitwise", ISCA 2024). Linear between the points the means are 1,164 and
// 210; the trace's own are 1,155 and 211.
constexpr Quantile kConversationPrompt[] = {
    {0, 2},        {0.01, 29},   {0.02, 91},    {0.05, 181},  {0.1, 207},    {0.15, 372},   {0.2, 387},
    {0.25, 396},   {0.3, 403},   {0.35, 414},   {0.4, 703},   {0.45, 984},   {0.5, 1020},   {0.55, 1045},
    {0.6, 1071},   {0.65, 1097}, {0.7, 1130},   {0.75, 1189}, {0.8, 1315},   {0.85, 1876},  {0.9, 2734},
    {0.925, 4075}, {0.95, 4083}, {0.975, 4092}, {0.99, 4142}, {0.995, 4831}, {0.999, 6179}, {1, 14050}};
constexpr Quantile kConversationOutput[] = {
    {0, 7},       {0.01, 16},  {0.02, 24},   {0.05, 41},  {0.1, 54},    {0.15, 67},   {0.2, 77},
    {0.25, 85},   {0.3, 91},   {0.35, 96},   {0.4, 103},  {0.45, 113},  {0.5, 129},   {0.55, 151},
    {0.6, 177},   {0.65, 217}, {0.7, 384},   {0.75, 395}, {0.8, 400},   {0.85, 411},  {0.9, 424},
    {0.925, 430}, {0.95, 451}, {0.975, 522}, {0.99, 601}, {0.995, 643}, {0.999, 954}, {1, 1000}};

// Azure 2023, code part. Published of it: prompt mean 2047.85, median 1469, 95 % point 7303; output
// mean 27.88, median
// 13. Those medians, the 95 % point and both means hold here; the other points are our guess at a shape that
// gives them.
constexpr Quantile kCodePrompt[] = {{0, 3},      {0.25, 650},  {0.5, 1469}, {0.75, 2400},
                                    {0.9, 4866}, {0.95, 7303}, {1, 7437}};
constexpr Quantile kCodeOutput[] = {{0, 1},    {0.25, 7},  {0.5, 13},   {0.75, 24},
                                    {0.9, 50}, {0.95, 90}, {0.99, 156}, {1, 1000}};

struct Profile {
  absl::string_view name;
  absl::Span<const Quantile> prompt;
  absl::Span<const Quantile> output;
};

constexpr Profile kProfiles[] = {{"conversation", kConversationPrompt, kConversationOutput},
                                 {"code", kCodePrompt, kCodeOutput}};

int64_t Draw(absl::Span<const Quantile> table, Rng& rng) {
  const double u = rng.Uniform();
  const auto* const above = std::upper_bound(table.begin() + 1, table.end() - 1, u,
                                             [](double p, const Quantile& q) { return p < q.probability; });
  const Quantile& low = *(above - 1);
  const double share = (u - low.probability) / (above->probability - low.probability);
  return std::max<int64_t>(1, std::llround(low.tokens + share * (above->tokens - low.tokens)));
}

}  // namespace

absl::StatusOr<Trace> SampleProfile(absl::string_view name, int64_t requests, uint64_t seed) {
  const auto* const profile = std::find_if(std::begin(kProfiles), std::end(kProfiles),
                                           [&](const Profile& p) { return p.name == name; });
  if (profile == std::end(kProfiles)) {
    std::string names;
    for (const Profile& p : kProfiles) absl::StrAppend(&names, names.empty() ? "" : ", ", p.name);
    return absl::NotFoundError(absl::StrCat("unknown profile '", name, "'; there are ", names));
  }
  if (requests < 1) return absl::InvalidArgumentError("a profile needs at least one request");
  Trace trace;
  trace.source = std::string(name);
  trace.format = "profile";
  trace.requests.resize(static_cast<size_t>(requests));
  // Separate streams, so that a change of one table leaves the other column as it was.
  Rng prompts = Rng(seed).Fork(0), outputs = Rng(seed).Fork(1);
  for (TraceRequest& request : trace.requests) {
    request.prompt_tokens = Draw(profile->prompt, prompts);
    request.output_tokens = Draw(profile->output, outputs);
  }
  return trace;
}

}  // namespace bfio
