#include "worker/scheduler/kv_admission.h"

#include <algorithm>
#include <functional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace bfio::worker {

absl::StatusOr<KvAdmissionOptions> ParseKvAdmission(absl::string_view text) {
  if (text == "none") return KvAdmissionOptions();
  if (text == "kv_feasible") return KvAdmissionOptions{KvAdmissionOptions::Kind::kKvFeasible};
  if (absl::ConsumePrefix(&text, "watermark:share=")) {
    KvAdmissionOptions options{KvAdmissionOptions::Kind::kWatermark};
    if (absl::SimpleAtod(text, &options.share) && options.share >= 0 && options.share < 1) return options;
    return absl::InvalidArgumentError(
        absl::StrCat("share of watermark is '", text, "', not a number from 0 to below 1"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is unknown, choose one of none, kv_feasible, watermark:share=W"));
}

absl::Status KvAdmission::Check(const Request& request, int64_t free_kv_tokens) {
  const bool concerns =
      options_.kind != KvAdmissionOptions::Kind::kNone && request.on_demand && !running_.empty();
  if (!concerns || Holds(request, free_kv_tokens)) return absl::OkStatus();
  return absl::ResourceExhaustedError("memory would not be sure to suffice for it and for those that run");
}

bool KvAdmission::Holds(const Request& request, int64_t free_kv_tokens) {
  if (options_.kind == KvAdmissionOptions::Kind::kKvFeasible) return HoldsToEveryEnd(request);
  const double kept = options_.share * static_cast<double>(kv_tokens_);
  return static_cast<double>(free_kv_tokens - request.prompt_tokens) >= kept;
}

bool KvAdmission::HoldsToEveryEnd(const Request& request) {
  ends_.clear();
  // KV that is reserved on admission counts until the end of every request.
  int64_t reserved = 0;
  for (const auto& [id, running] : running_) {
    if (running.on_demand) {
      ends_.push_back({running.steps, running.tokens});
    } else {
      reserved += running.tokens + running.steps - 1;
    }
  }
  ends_.push_back({request.max_new_tokens, request.prompt_tokens});
  // Memory peaks in the last step of some request. From the latest end backwards, more and more requests run.
  std::sort(ends_.begin(), ends_.end(), std::greater<>());
  int64_t tokens = 0;
  for (size_t i = 0; i < ends_.size(); ++i) {
    tokens += ends_[i].second;
    if (i + 1 < ends_.size() && ends_[i + 1].first == ends_[i].first) continue;
    const auto runs = static_cast<int64_t>(i) + 1;
    if (reserved + tokens + runs * (ends_[i].first - 1) > kv_tokens_) return false;
  }
  return true;
}

void KvAdmission::Begin(const Request& request) {
  if (options_.kind == KvAdmissionOptions::Kind::kNone) return;
  running_[request.id] = {request.prompt_tokens, request.max_new_tokens, request.on_demand};
}

void KvAdmission::OnToken(uint64_t id) {
  const auto it = running_.find(id);
  if (it == running_.end()) return;
  ++it->second.tokens;
  it->second.steps = std::max<int64_t>(1, it->second.steps - 1);
}

}  // namespace bfio::worker
