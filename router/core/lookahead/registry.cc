#include <bit>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "router/core/lookahead/fixed_length.h"
#include "router/core/lookahead/hint.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/lookahead/survival.h"

namespace bfio::core {
namespace {

using LookaheadPtr = std::unique_ptr<Lookahead>;

struct LookaheadEntry {
  LookaheadInfo info;
  LookaheadPtr (*make)(const LookaheadOptions&);
};

constexpr LookaheadEntry kLookaheads[] = {
    {{"none", "no prediction: policies use current loads only"},
     [](const LookaheadOptions&) -> LookaheadPtr { return std::make_unique<NoLookahead>(); }},
    {{"survival", "predicts lengths from finished requests of the same tenant with similar prompt lengths"},
     [](const LookaheadOptions& options) -> LookaheadPtr {
       return std::make_unique<SurvivalLookahead>(options);
     }},
    {{"hint",
      "survival, combined with the workers' end-of-sequence probabilities as far as these prove accurate"},
     [](const LookaheadOptions& options) -> LookaheadPtr {
       return std::make_unique<HintLookahead>(options);
     }},
    {{"max_tokens", "assumes that every request generates its max_new_tokens"},
     [](const LookaheadOptions&) -> LookaheadPtr {
       return std::make_unique<FixedLengthLookahead>(FixedLengthLookahead::Kind::kMaxTokens);
     }},
    {{"oracle", "uses the client's predicted_output_tokens, or max_new_tokens if it is not set"},
     [](const LookaheadOptions&) -> LookaheadPtr {
       return std::make_unique<FixedLengthLookahead>(FixedLengthLookahead::Kind::kOracle);
     }},
};

absl::Status Check(const LookaheadOptions& options) {
  // The negated comparisons also catch NaN.
  const auto wrong = [](const char* field, const auto& value, const char* must) {
    return absl::InvalidArgumentError(absl::StrCat("lookahead: ", field, " is ", value, "; must be ", must));
  };
  if (!(options.memory_requests >= 1)) return wrong("memory_requests", options.memory_requests, "at least 1");
  if (!(options.prior_mean_tokens >= 1 && options.prior_mean_tokens <= 1e9)) {
    return wrong("prior_mean_tokens", options.prior_mean_tokens, "within 1..1e9");
  }
  if (!(options.prior_requests >= 0)) return wrong("prior_requests", options.prior_requests, "at least 0");
  if (!(options.pool_requests >= 0)) return wrong("pool_requests", options.pool_requests, "at least 0");
  if (options.max_groups < 0 || options.max_groups > 4096) {
    return wrong("max_groups", options.max_groups, "within 0..4096");
  }
  if (options.ages_per_octave < 1 || options.ages_per_octave > 65536 ||
      !std::has_single_bit(static_cast<uint32_t>(options.ages_per_octave))) {
    return wrong("ages_per_octave", options.ages_per_octave, "a power of two within 1..65536");
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<LookaheadInfo>& RegisteredLookaheads() {
  static const auto* const kInfos = [] {
    auto* infos = new std::vector<LookaheadInfo>;
    for (const LookaheadEntry& lookahead : kLookaheads) infos->push_back(lookahead.info);
    return infos;
  }();
  return *kInfos;
}

absl::StatusOr<std::unique_ptr<Lookahead>> MakeLookahead(absl::string_view name,
                                                         const LookaheadOptions& options) {
  if (absl::Status status = Check(options); !status.ok()) return status;
  std::string known;
  for (const LookaheadEntry& lookahead : kLookaheads) {
    if (lookahead.info.name == name) return lookahead.make(options);
    absl::StrAppend(&known, known.empty() ? "" : ", ", lookahead.info.name);
  }
  return absl::InvalidArgumentError(absl::StrCat("lookahead '", name, "' is unknown, choose one of ", known));
}

}  // namespace bfio::core
