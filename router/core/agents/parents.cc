#include "router/core/agents/parents.h"

#include <utility>

namespace bfio::core {

std::optional<Parents::State> Parents::Find(absl::string_view name, int64_t step,
                                            std::optional<uint32_t> stage) const {
  const auto it = parents_.find(name);
  if (it == parents_.end()) {
    if (size() >= limit_ && idle_.empty()) return std::nullopt;
    return State{.first_step = step};
  }
  const Parent& parent = it->second;
  if (Forgotten(parent, step)) return State{.first_step = step};
  if (step - parent.first_step > kMaxAgeSteps) return State{step, 0, parent.deadline_us};
  const int64_t ended = BeginsStage(parent, stage) ? parent.stage_tokens : 0;
  return State{parent.first_step, parent.generated_tokens + ended, parent.deadline_us};
}

void Parents::Begin(absl::string_view name, RequestId call, int64_t step, std::optional<uint32_t> stage,
                    int64_t deadline_us) {
  auto it = parents_.find(name);
  if (it == parents_.end()) {
    if (size() >= limit_) {
      parents_.erase(idle_.front());
      idle_.pop_front();
    }
    it = parents_.emplace(name, Parent{.first_step = step, .stage = stage}).first;
  } else {
    Parent& parent = it->second;
    if (parent.calls.empty()) idle_.erase(parent.idle);
    if (Forgotten(parent, step)) parent = {.first_step = step, .stage = stage};
    if (step - parent.first_step > kMaxAgeSteps) {
      parent.first_step = step;
      parent.generated_tokens = parent.stage_tokens = 0;
    }
  }
  Parent& parent = it->second;
  if (BeginsStage(parent, stage)) {
    parent.generated_tokens += std::exchange(parent.stage_tokens, 0);
    parent.stage = stage;
  }
  parent.deadline_us = std::min(parent.deadline_us, deadline_us);
  parent.calls.push_back(call);
}

void Parents::End(absl::string_view name, RequestId call, int64_t tokens, int64_t step) {
  const auto it = parents_.find(name);
  if (it == parents_.end()) return;
  Parent& parent = it->second;
  const auto at = std::find(parent.calls.begin(), parent.calls.end(), call);
  if (at == parent.calls.end()) return;
  parent.calls.erase(at);
  parent.stage_tokens = std::max(parent.stage_tokens, tokens);
  if (!parent.calls.empty()) return;
  parent.idle_since = step;
  idle_.emplace_back(name);
  parent.idle = std::prev(idle_.end());
}

absl::Span<const RequestId> Parents::Calls(absl::string_view name) const {
  const auto it = parents_.find(name);
  return it == parents_.end() ? absl::Span<const RequestId>() : it->second.calls;
}

int64_t Parents::Deadline(absl::string_view name) const {
  const auto it = parents_.find(name);
  return it == parents_.end() ? RequestSpec::kNoDeadline : it->second.deadline_us;
}

}  // namespace bfio::core
