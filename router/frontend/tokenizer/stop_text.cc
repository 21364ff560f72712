#include "router/frontend/tokenizer/stop_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace bfio::router {

StopText::StopText(std::shared_ptr<const TokenText> tokens, std::vector<std::string> stops, bool special)
    : tokens_(std::move(tokens)), stops_(std::move(stops)), special_(special) {
  for (const std::string& stop : stops_) kept_ = std::max(kept_, stop.size() - 1);
}

std::optional<std::string> StopText::Add(uint32_t token) {
  const absl::string_view text = tokens_->Of(token, special_);
  if (text.empty()) return std::nullopt;
  const size_t before = tail_.size();
  absl::StrAppend(&tail_, text);
  for (const std::string& stop : stops_) {
    // A new match must end within the token's text, because earlier ones would have been found before.
    const size_t first = before < stop.size() ? 0 : before - stop.size() + 1;
    if (absl::StrContains(absl::string_view(tail_).substr(first), stop)) return stop;
  }
  if (tail_.size() > kept_) tail_.erase(0, tail_.size() - kept_);
  return std::nullopt;
}

}  // namespace bfio::router
