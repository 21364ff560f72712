// Built-in length profiles: quantile tables, drawn by inversion. Where prompts and outputs are correlated,
// the uniform numbers come from correlated normal variates (a Gaussian copula).
#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
// Dataset, CC-BY; Patel et al., "Splitwise", ISCA 2024). With linear interpolation the means are 1,164 and
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

// Azure 2023, code part. Published: prompt mean 2047.85, median 1469, 95 % quantile 7303; output mean 27.88,
// median 13. The profile has those medians, that quantile and both means; the other points are a guess at a
// shape with these values.
constexpr Quantile kCodePrompt[] = {{0, 3},      {0.25, 650},  {0.5, 1469}, {0.75, 2400},
                                    {0.9, 4866}, {0.95, 7303}, {1, 7437}};
constexpr Quantile kCodeOutput[] = {{0, 1},    {0.25, 7},  {0.5, 13},   {0.75, 24},
                                    {0.9, 50}, {0.95, 90}, {0.99, 156}, {1, 1000}};

// Quantiles of the 8,000 pairs that the BF-IO paper's authors sampled from BurstGPT for their simulator
// (Echoscd/Load-Balancing-Release; BurstGPT: Wang et al., CC-BY-4.0). The tail has many points
// because it matters most for balance: a resident request's load is weighted by its length. Values of the
// sample and of this profile (500,000 requests):
//   prompt   mean 362.9, 365; sd 502, 499; median 217, 217; largest 14,117, 14,117
//   output   mean 57.05, 57.3; sd 154.4, 155; median 7, 7; largest 3,206, 3,206
//   prompt of a resident request, E[o s] / E[o]       861, 861
//   its age in tokens, (E[o^2] - E[o]) / (2 E[o])     237, 238
//   correlation of prompt and output                  0.367, 0.367
constexpr Quantile kBurstGptPrompt[] = {
    {0, 9},        {0.005, 36},   {0.01, 59},     {0.02, 64},     {0.05, 80},   {0.1, 121},    {0.15, 161},
    {0.2, 175},    {0.25, 188},   {0.3, 196},     {0.4, 206},     {0.5, 217},   {0.6, 232},    {0.65, 244},
    {0.7, 266},    {0.75, 292},   {0.775, 326},   {0.8, 377},     {0.825, 438}, {0.85, 543},   {0.9, 626},
    {0.925, 827},  {0.95, 1140},  {0.96, 1452},   {0.97, 1846},   {0.98, 2258}, {0.985, 2455}, {0.99, 2993},
    {0.995, 3116}, {0.999, 3552}, {0.9995, 4662}, {0.9998, 6105}, {1, 14117}};
constexpr Quantile kBurstGptOutput[] = {
    {0, 1},         {0.03, 1},     {0.05, 2},      {0.07, 4},    {0.085, 7},  {0.53, 7},     {0.54, 8},
    {0.56, 13},     {0.58, 17},    {0.6, 20},      {0.65, 26},   {0.7, 29},   {0.75, 33},    {0.775, 36},
    {0.8, 48},      {0.825, 76},   {0.85, 101},    {0.875, 124}, {0.9, 150},  {0.925, 184},  {0.95, 243},
    {0.96, 290},    {0.97, 356},   {0.98, 464},    {0.985, 534}, {0.99, 642}, {0.9925, 715}, {0.995, 1089},
    {0.9975, 1544}, {0.999, 1898}, {0.9995, 2130}, {1, 3206}};
// Short questions and long chains of thought: prompts uniform on 20 .. 300, outputs lognormal(8, 0.6) (median
// 2,981, mean 3,569 tokens). A synthetic shape, not a measured trace.
constexpr Quantile kReasoningPrompt[] = {{0, 20}, {1, 300}};
constexpr Quantile kReasoningOutput[] = {
    {0, 320},    {0.001, 467}, {0.005, 636},  {0.01, 738},   {0.025, 920},   {0.05, 1111},   {0.1, 1382},
    {0.2, 1799}, {0.3, 2176},  {0.4, 2561},   {0.5, 2981},   {0.6, 3470},    {0.7, 4083},    {0.8, 4939},
    {0.9, 6431}, {0.95, 7998}, {0.975, 9662}, {0.99, 12038}, {0.995, 13982}, {0.999, 19037}, {1, 27762}};

// Retrieval and documents among chat: one prompt in ten is lognormal about 16,000 tokens (standard deviation
// of the logarithm 0.5), the others about 500 (0.8); outputs lognormal about 200 (0.7). A synthetic shape,
// not a measured trace.
constexpr Quantile kLongPromptsPrompt[] = {
    {0, 37},       {0.005, 66},   {0.02, 100},   {0.05, 140},    {0.1, 188},     {0.2, 271},    {0.3, 354},
    {0.4, 447},    {0.5, 559},    {0.6, 706},    {0.7, 922},     {0.8, 1328},    {0.85, 1789},  {0.88, 2496},
    {0.9, 5329},   {0.91, 8474},  {0.92, 10516}, {0.93, 12315},  {0.94, 14099},  {0.95, 16001}, {0.96, 18161},
    {0.97, 20797}, {0.98, 24371}, {0.99, 30367}, {0.995, 36416}, {0.999, 51201}, {1, 60000}};
constexpr Quantile kLongPromptsOutput[] = {
    {0, 20},    {0.001, 23}, {0.005, 33},  {0.01, 39},   {0.025, 51},   {0.05, 63},    {0.1, 82},
    {0.2, 111}, {0.3, 139},  {0.4, 167},   {0.5, 200},   {0.6, 239},    {0.7, 289},    {0.8, 360},
    {0.9, 490}, {0.95, 633}, {0.975, 789}, {0.99, 1019}, {0.995, 1214}, {0.999, 1740}, {1, 2702}};

// The shapes below are synthetic too, each a case that some placement policy handles badly. Agents:
// lognormal(8.5, 0.8) prompts, of 6,800 tokens on average, and lognormal(5, 0.8) outputs.
constexpr Quantile kAgenticPrompt[] = {
    {0, 251},     {0.001, 415},  {0.005, 626},   {0.01, 764},   {0.025, 1025},  {0.05, 1318},   {0.1, 1763},
    {0.2, 2507},  {0.3, 3231},   {0.4, 4013},    {0.5, 4915},   {0.6, 6019},    {0.7, 7477},    {0.8, 9636},
    {0.9, 13701}, {0.95, 18322}, {0.975, 23576}, {0.99, 31605}, {0.995, 38587}, {0.999, 58232}, {1, 60000}};
constexpr Quantile kAgenticOutput[] = {
    {0, 8},     {0.001, 13}, {0.005, 19},  {0.01, 23},  {0.025, 31},   {0.05, 40},    {0.1, 53},
    {0.2, 76},  {0.3, 98},   {0.4, 121},   {0.5, 148},  {0.6, 182},    {0.7, 226},    {0.8, 291},
    {0.9, 414}, {0.95, 553}, {0.975, 712}, {0.99, 954}, {0.995, 1165}, {0.999, 1758}, {1, 2908}};
// Prompts and outputs exponential with mean 1,000: the remaining output of a request does not depend on its
// age.
constexpr Quantile kExponential[] = {
    {0, 1},      {0.001, 1},   {0.005, 5},    {0.01, 10},   {0.025, 25},   {0.05, 51},    {0.1, 105},
    {0.2, 223},  {0.3, 357},   {0.4, 511},    {0.5, 693},   {0.6, 916},    {0.7, 1204},   {0.8, 1609},
    {0.9, 2303}, {0.95, 2996}, {0.975, 3689}, {0.99, 4605}, {0.995, 5298}, {0.999, 6908}, {1, 9210}};
// One output in ten has 2,000 tokens, the others 20; prompts lognormal(6.5, 1).
constexpr Quantile kBimodalOutputsPrompt[] = {
    {0, 16},     {0.001, 30},  {0.005, 51},   {0.01, 65},   {0.025, 94},   {0.05, 128},    {0.1, 185},
    {0.2, 287},  {0.3, 394},   {0.4, 516},    {0.5, 665},   {0.6, 857},    {0.7, 1124},    {0.8, 1543},
    {0.9, 2396}, {0.95, 3446}, {0.975, 4722}, {0.99, 6811}, {0.995, 8741}, {0.999, 14621}, {1, 16000}};
constexpr Quantile kBimodalOutputsOutput[] = {{0, 20}, {0.9, 20}, {0.9, 2000}, {1, 2000}};
// One prompt in twenty has 20,000 tokens, the others 400; outputs as in long_prompts.
constexpr Quantile kBimodalPromptsPrompt[] = {{0, 400}, {0.95, 400}, {0.95, 20000}, {1, 20000}};
// Outputs about half as long as their prompts (lognormal(6.8, 1.2)), as in summaries.
constexpr Quantile kCorrelatedPrompt[] = {
    {0, 16},     {0.001, 22},  {0.005, 41},   {0.01, 55},    {0.025, 85},    {0.05, 125},    {0.1, 193},
    {0.2, 327},  {0.3, 479},   {0.4, 662},    {0.5, 898},    {0.6, 1217},    {0.7, 1685},    {0.8, 2465},
    {0.9, 4179}, {0.95, 6463}, {0.975, 9433}, {0.99, 14642}, {0.995, 19752}, {0.999, 32000}, {1, 32000}};
constexpr Quantile kCorrelatedOutput[] = {
    {0, 8},      {0.001, 11},  {0.005, 20},   {0.01, 27},   {0.025, 42},   {0.05, 62},     {0.1, 96},
    {0.2, 162},  {0.3, 238},   {0.4, 329},    {0.5, 446},   {0.6, 604},    {0.7, 837},     {0.8, 1224},
    {0.9, 2075}, {0.95, 3209}, {0.975, 4684}, {0.99, 7271}, {0.995, 9808}, {0.999, 16000}, {1, 16000}};
// One output in ten is a hundred times as long as the others: lognormal about 30 and about 3,000 (standard
// deviation of the logarithm 0.5). Prompts are those of conversation.
constexpr Quantile kRareLongOutputs[] = {
    {0, 8},       {0.009, 9},    {0.045, 13},   {0.09, 16},    {0.18, 20},    {0.315, 25},  {0.45, 30},
    {0.585, 36},  {0.72, 46},    {0.81, 57},    {0.855, 68},   {0.891, 96},   {0.9, 150},   {0.9, 700},
    {0.901, 937}, {0.905, 1318}, {0.91, 1581},  {0.92, 1970},  {0.935, 2474}, {0.95, 3000}, {0.965, 3637},
    {0.98, 4570}, {0.99, 5694},  {0.995, 6828}, {0.999, 9600}, {1, 12000}};
// Pareto lengths (shape 1.3): prompts 150 to 60,000, outputs 50 to 10,000, long where prompts are.
constexpr Quantile kHeavyTailsPrompt[] = {
    {0, 150},      {0.1, 163},     {0.2, 178},     {0.3, 197},     {0.4, 222},      {0.5, 256},
    {0.6, 304},    {0.7, 379},     {0.8, 517},     {0.85, 645},    {0.9, 882},      {0.93, 1160},
    {0.95, 1503},  {0.97, 2226},   {0.98, 3041},   {0.985, 3794},  {0.99, 5183},    {0.993, 6819},
    {0.995, 8833}, {0.997, 13085}, {0.998, 17874}, {0.999, 30464}, {0.9995, 51921}, {1, 60000}};
constexpr Quantile kHeavyTailsOutput[] = {
    {0, 50},       {0.1, 54},     {0.2, 59},     {0.3, 66},      {0.4, 74},       {0.5, 85},
    {0.6, 101},    {0.7, 126},    {0.8, 172},    {0.85, 215},    {0.9, 294},      {0.93, 387},
    {0.95, 501},   {0.97, 742},   {0.98, 1014},  {0.985, 1265},  {0.99, 1728},    {0.993, 2273},
    {0.995, 2944}, {0.997, 4362}, {0.998, 5958}, {0.999, 10000}, {0.9995, 10000}, {1, 10000}};
// All requests alike: prompts of 512 tokens, outputs of 256. Round robin is optimal here, so every other
// policy must match it.
constexpr Quantile kConstantPrompt[] = {{0, 512}, {1, 512}};
constexpr Quantile kConstantOutput[] = {{0, 256}, {1, 256}};

// Correlation of the normal variates that gives the lengths the sample's correlation. The sample's dependence
// is not Gaussian: its rank correlation is only 0.17, this profile's 0.54. The correlation of the lengths is
// matched because it determines how loads grow.
constexpr double kBurstGptCopula = 0.557;
constexpr double kHeavyTailsCopula = 0.9;
// For "correlated": the output is nearly a function of the prompt.
constexpr double kCorrelatedCopula = 0.98;

struct Profile {
  absl::string_view name;
  absl::Span<const Quantile> prompt;
  absl::Span<const Quantile> output;
  // Correlation of the normal variates for the two lengths of a request; 0: drawn independently.
  double copula = 0;
};

constexpr Profile kProfiles[] = {{"conversation", kConversationPrompt, kConversationOutput},
                                 {"code", kCodePrompt, kCodeOutput},
                                 {"burstgpt", kBurstGptPrompt, kBurstGptOutput, kBurstGptCopula},
                                 {"reasoning", kReasoningPrompt, kReasoningOutput},
                                 {"long_prompts", kLongPromptsPrompt, kLongPromptsOutput},
                                 {"agentic", kAgenticPrompt, kAgenticOutput},
                                 {"exponential", kExponential, kExponential},
                                 {"bimodal_outputs", kBimodalOutputsPrompt, kBimodalOutputsOutput},
                                 {"bimodal_prompts", kBimodalPromptsPrompt, kLongPromptsOutput},
                                 {"correlated", kCorrelatedPrompt, kCorrelatedOutput, kCorrelatedCopula},
                                 {"rare_long_outputs", kConversationPrompt, kRareLongOutputs},
                                 {"heavy_tails", kHeavyTailsPrompt, kHeavyTailsOutput, kHeavyTailsCopula},
                                 {"constant", kConstantPrompt, kConstantOutput}};

// The quantile at `u` in [0, 1], in whole tokens.
int64_t At(absl::Span<const Quantile> table, double u) {
  const auto* const above = std::upper_bound(table.begin() + 1, table.end() - 1, u,
                                             [](double p, const Quantile& q) { return p < q.probability; });
  const Quantile& low = *(above - 1);
  const double share = (u - low.probability) / (above->probability - low.probability);
  return std::max<int64_t>(1, std::llround(low.tokens + share * (above->tokens - low.tokens)));
}

double NormalCdf(double x) {
  return 0.5 * std::erfc(-x * std::sqrt(0.5));
}

}  // namespace

std::vector<std::string> ProfileNames() {
  std::vector<std::string> names;
  for (const Profile& profile : kProfiles) names.emplace_back(profile.name);
  return names;
}

absl::StatusOr<Trace> SampleProfile(absl::string_view name, int64_t requests, uint64_t seed) {
  const auto* const profile = std::find_if(std::begin(kProfiles), std::end(kProfiles),
                                           [&](const Profile& p) { return p.name == name; });
  if (profile == std::end(kProfiles)) {
    return absl::NotFoundError(
        absl::StrCat("unknown profile '", name, "'; must be one of ", absl::StrJoin(ProfileNames(), ", ")));
  }
  if (requests < 1) return absl::InvalidArgumentError("a profile needs at least one request");
  Trace trace;
  trace.source = std::string(name);
  trace.format = "profile";
  trace.requests.resize(static_cast<size_t>(requests));
  // Separate streams, so that a change of one table does not change the other column.
  Rng prompts = Rng(seed).Fork(0), outputs = Rng(seed).Fork(1);
  for (TraceRequest& request : trace.requests) {
    if (profile->copula == 0) {
      request.prompt_tokens = At(profile->prompt, prompts.Uniform());
      request.output_tokens = At(profile->output, outputs.Uniform());
      continue;
    }
    const double r = profile->copula, first = prompts.Normal();
    const double second = r * first + std::sqrt(1 - r * r) * outputs.Normal();
    request.prompt_tokens = At(profile->prompt, NormalCdf(first));
    request.output_tokens = At(profile->output, NormalCdf(second));
  }
  return trace;
}

}  // namespace bfio
