#include "router/engine_link/engine_address.h"

#include <algorithm>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "router/group/group_key.h"

namespace bfio::router {
namespace {

// Far above the budget of any engine.
constexpr int64_t kMostTokenBudget = int64_t{1} << 24;

bool IsName(absl::string_view text) {
  return !text.empty() && text.size() <= kMaxGroupNameBytes &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.'; });
}

// Reads `barrier=NAME&token_budget=N&pinned=1` into `engine`.
absl::Status ReadQuery(absl::string_view query, EngineAddress& engine) {
  bool budget = false;
  for (const absl::string_view setting : absl::StrSplit(query, '&')) {
    const std::pair<absl::string_view, absl::string_view> split =
        absl::StrSplit(setting, absl::MaxSplits('=', 1));
    if (split.first == "barrier") {
      if (!IsName(split.second)) {
        return absl::InvalidArgumentError(absl::StrCat("'", setting, "': NAME must have 1 to ",
                                                       kMaxGroupNameBytes,
                                                       " letters, digits, '-', '_' or '.'"));
      }
      engine.barrier = std::string(split.second);
    } else if (split.first == "token_budget") {
      if (!absl::SimpleAtoi(split.second, &engine.token_budget) || engine.token_budget < 1 ||
          engine.token_budget > kMostTokenBudget) {
        return absl::InvalidArgumentError(
            absl::StrCat("'", setting, "': must be within 1..", kMostTokenBudget));
      }
      budget = true;
    } else if (setting == "pinned=1" && engine.protocol == "sglang") {
      engine.pinned = true;
    } else {
      return absl::InvalidArgumentError(absl::StrCat("'", setting,
                                                     "' is unknown; must be barrier=NAME or token_budget=N",
                                                     engine.protocol == "sglang" ? " or pinned=1" : ""));
    }
  }
  if (engine.barrier.empty() && budget)
    return absl::InvalidArgumentError(absl::StrCat("'", query, "': token_budget needs barrier=NAME"));
  return absl::OkStatus();
}

absl::StatusOr<EngineAddress> ParseServer(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> split =
      absl::StrSplit(text, absl::MaxSplits("://", 1));
  EngineAddress engine;
  absl::string_view protocol = split.first;
  engine.by_name = absl::ConsumeSuffix(&protocol, "+dns");
  if ((protocol != "vllm" && protocol != "sglang") || split.second.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text,
                     "' must be vllm://HOST:PORT, sglang://HOST:PORT, vllm+dns://NAME:PORT, "
                     "sglang+dns://NAME:PORT or file:PATH"));
  }
  engine.protocol = std::string(protocol);
  BFIO_ASSIGN_OR_RETURN(engine.server, ParseAddress(std::string(split.second)));
  return engine;
}

}  // namespace

std::string EngineAddress::ToString() const {
  return absl::StrCat(protocol, by_name ? "+dns" : "", "://", server.ToString());
}

absl::StatusOr<std::vector<EngineAddress>> ParseEngines(const std::string& text) {
  std::vector<EngineAddress> engines;
  // Index of the first engine without settings; such engines take the settings of the next one that has any.
  size_t first_bare = 0;
  bool any_barrier = false;
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> split =
        absl::StrSplit(part, absl::MaxSplits('?', 1));
    BFIO_ASSIGN_OR_RETURN(EngineAddress engine, ParseServer(split.first));
    if (std::any_of(engines.begin(), engines.end(),
                    [&](const EngineAddress& other) { return other.server == engine.server; })) {
      return absl::InvalidArgumentError(absl::StrCat("'", part, "' is listed twice"));
    }
    if (!engines.empty() && engines.front().protocol != engine.protocol)
      return absl::InvalidArgumentError(
          absl::StrCat("'", part, "': all engines of a router must have the same protocol, vllm or sglang"));
    engines.push_back(std::move(engine));
    if (split.first.size() == part.size()) continue;
    BFIO_RETURN_IF_ERROR(ReadQuery(split.second, engines.back()));
    any_barrier = any_barrier || !engines.back().barrier.empty();
    for (; first_bare < engines.size(); ++first_bare) {
      engines[first_bare].barrier = engines.back().barrier;
      engines[first_bare].token_budget = engines.back().token_budget;
      engines[first_bare].pinned = engines.back().pinned;
    }
  }
  for (const EngineAddress& engine : engines) {
    if (!any_barrier || !engine.barrier.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "'", engine.ToString(),
        "' has no barrier, but other engines have one: add ?barrier=NAME to all engines or to none"));
  }
  return engines;
}

}  // namespace bfio::router
