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
  std::string known;
  for (const LookaheadEntry& lookahead : kLookaheads) {
    if (lookahead.info.name == name) return lookahead.make(options);
    absl::StrAppend(&known, known.empty() ? "" : ", ", lookahead.info.name);
  }
  return absl::InvalidArgumentError(absl::StrCat("lookahead '", name, "' is unknown, choose one of ", known));
}

}  // namespace bfio::core
