#include "router/core/agents/parents.h"

#include <algorithm>
#include <utility>

namespace bfio::core {

std::optional<Parents::Standing> Parents::Begin(absl::string_view name, int64_t step,
                                                std::optional<uint32_t> stage) {
  auto it = parents_.find(name);
  if (it == parents_.end()) {
    if (size() >= limit_) {
      if (idle_.empty()) return std::nullopt;
      parents_.erase(idle_.front());
      idle_.pop_front();
    }
    it = parents_.emplace(name, Parent{.first_step = step, .stage = stage}).first;
  } else if (it->second.calls == 0) {
    idle_.erase(it->second.idle);
  }
  Parent& parent = it->second;
  if (parent.calls == 0 || (stage.has_value() && stage > parent.stage)) {
    parent.tokens_made += std::exchange(parent.wave_tokens, 0);
    parent.stage = stage;
  }
  ++parent.calls;
  return Standing{parent.first_step, parent.tokens_made};
}

void Parents::End(absl::string_view name, int64_t tokens) {
  const auto it = parents_.find(name);
  if (it == parents_.end()) return;
  Parent& parent = it->second;
  parent.wave_tokens = std::max(parent.wave_tokens, tokens);
  if (--parent.calls > 0) return;
  idle_.emplace_back(name);
  parent.idle = std::prev(idle_.end());
}

}  // namespace bfio::core
