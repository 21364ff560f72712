#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "research/admission/admission_rule.h"
#include "research/admission/memory_rule.h"
#include "research/admission/protection_rule.h"
#include "research/admission/watermark_rule.h"

namespace bfio::sim {
namespace {

using Order = MemoryRuleOptions::Order;

// vLLM's defaults.
constexpr double kWatermark = 0.01, kBlockTokens = 16;

// Parses "key=number,..." into the variables given by name.
absl::Status ReadNumbers(absl::string_view rule, absl::string_view text,
                         const std::vector<std::pair<absl::string_view, std::optional<double>*>>& names) {
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    bool known = false;
    for (const auto& [name, value] : names) {
      if (pair.first != name) continue;
      known = true;
      double number = 0;
      if (!absl::SimpleAtod(pair.second, &number) || !(number >= 0) || number > 1e9) {
        return absl::InvalidArgumentError(
            absl::StrCat(rule, ": ", name, " is '", pair.second, "', must be within 0..1e9"));
      }
      *value = number;
    }
    if (!known) return absl::InvalidArgumentError(absl::StrCat(rule, " has no setting '", pair.first, "'"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdmissionRule>> MakeAdmissionRule(absl::string_view text,
                                                                 const AdmissionOptions& options) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  const absl::string_view name = parts.first;
  if (name == "mc_sf" || name == "mc_sf_paced" || name == "mc_fcfs") {
    std::optional<double> margin, most;
    BFIO_RETURN_IF_ERROR(ReadNumbers(name, parts.second, {{"margin", &margin}, {"most", &most}}));
    MemoryRuleOptions rule;
    rule.order = name == "mc_fcfs" ? Order::kArrival : Order::kShortestFirst;
    rule.paced = name == "mc_sf_paced";
    rule.margin = static_cast<int64_t>(margin.value_or(0));
    if (most) rule.most = static_cast<int64_t>(*most);
    return std::make_unique<MemoryRule>(options, rule);
  }
  if (name == "protect") {
    std::optional<double> alpha, beta;
    BFIO_RETURN_IF_ERROR(ReadNumbers(name, parts.second, {{"alpha", &alpha}, {"beta", &beta}}));
    if (alpha.value_or(0) >= 1) return absl::InvalidArgumentError("protect: alpha must be below 1");
    if (beta && (*beta <= 0 || *beta > 1))
      return absl::InvalidArgumentError("protect: beta must be above 0 and at most 1");
    return std::make_unique<ProtectionRule>(options, alpha.value_or(0), beta);
  }
  if (name == "watermark") {
    std::optional<double> share, block;
    BFIO_RETURN_IF_ERROR(ReadNumbers(name, parts.second, {{"share", &share}, {"block", &block}}));
    if (share.value_or(0) >= 1) return absl::InvalidArgumentError("watermark: share must be below 1");
    if (block.value_or(1) < 1) return absl::InvalidArgumentError("watermark: block must be at least 1");
    return std::make_unique<WatermarkRule>(options, share.value_or(kWatermark),
                                           static_cast<int64_t>(block.value_or(kBlockTokens)));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown admission rule '", name, "'; choose one of mc_sf, mc_sf_paced, mc_fcfs, protect, watermark"));
}

}  // namespace bfio::sim
