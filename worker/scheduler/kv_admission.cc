#include "worker/scheduler/kv_admission.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace bfio::worker {
namespace {

using Kind = KvAdmissionOptions::Kind;

}  // namespace

absl::StatusOr<KvAdmissionOptions> ParseKvAdmission(absl::string_view text) {
  if (text == "none") return KvAdmissionOptions();
  if (text == "kv_feasible") return KvAdmissionOptions{Kind::kKvFeasible};
  if (text == "mc_sf") return KvAdmissionOptions{Kind::kMcSf};
  if (absl::ConsumePrefix(&text, "mc_sf:most=")) {
    KvAdmissionOptions options{Kind::kMcSf};
    if (absl::SimpleAtoi(text, &options.most_steps) && options.most_steps >= 1) return options;
    return absl::InvalidArgumentError(
        absl::StrCat("mc_sf:most is '", text, "'; must be a number of steps, at least 1"));
  }
  if (absl::ConsumePrefix(&text, "watermark:share=")) {
    KvAdmissionOptions options{Kind::kWatermark};
    if (absl::SimpleAtod(text, &options.share) && options.share >= 0 && options.share < 1) return options;
    return absl::InvalidArgumentError(
        absl::StrCat("watermark:share is '", text, "'; must be a number of at least 0 and below 1"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text, "' is unknown, choose one of none, kv_feasible, mc_sf, mc_sf:most=K, watermark:share=W"));
}

void KvAdmission::Sort(absl::Span<const Request> requests, std::vector<int32_t>& order) const {
  order.clear();
  if (options_.kind != Kind::kMcSf) return;
  order.resize(requests.size());
  std::iota(order.begin(), order.end(), 0);
  // Requests that reserve always start, so they come first, and the others are tested with them.
  const auto key = [&](int32_t i) {
    const Request& request = requests[static_cast<size_t>(i)];
    const bool overdue = Overdue(request);
    return std::tuple(request.on_demand, !overdue, overdue ? 0 : request.max_new_tokens,
                      -request.waited_steps);
  };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return key(a) < key(b); });
}

absl::Status KvAdmission::Check(const Request& request, int64_t free_kv_tokens) {
  const bool concerns = options_.kind != Kind::kNone && request.on_demand && !running_.empty();
  if (!concerns || Fits(request, free_kv_tokens)) {
    only_overdue_ = only_overdue_ || (request.on_demand && Overdue(request));
    return absl::OkStatus();
  }
  closed_ = true;
  return absl::ResourceExhaustedError("the KV cache may not suffice for this request and the running ones");
}

bool KvAdmission::Fits(const Request& request, int64_t free_kv_tokens) {
  if (options_.kind == Kind::kMcSf && (closed_ || (only_overdue_ && !Overdue(request)))) return false;
  if (tests_ends()) {
    return memory_.PeakWith(CourseOf({request.prompt_tokens, request.max_new_tokens, true, true,
                                      request.prompt_steps})) <= kv_tokens_;
  }
  const double kept = options_.share * static_cast<double>(kv_tokens_);
  return static_cast<double>(free_kv_tokens - request.prompt_tokens) >= kept;
}

KvCourse KvAdmission::CourseOf(const Running& running) const {
  const int64_t late = running.waits ? running.prompt_steps : 0;
  if (running.on_demand) return {memory_.now(), running.tokens, running.steps, 0, late};
  // Its largest size, from now on.
  return {memory_.now(), running.tokens + running.steps - 1, 1, 0, running.steps - 1 + late};
}

void KvAdmission::Enter(uint64_t id, const Running& running) {
  if (memory_.Find(id) != nullptr) memory_.Remove(id, memory_.now());
  memory_.Add(id, CourseOf(running));
}

void KvAdmission::Begin(const Request& request) {
  if (options_.kind == Kind::kNone) return;
  const Running& running =
      running_[request.id] = {request.prompt_tokens, request.max_new_tokens, request.on_demand, true,
                              request.prompt_steps,  memory_.now()};
  if (!tests_ends()) return;
  prompts_.push_back(request.id);
  Enter(request.id, running);
}

void KvAdmission::OnToken(uint64_t id) {
  const auto it = running_.find(id);
  if (it == running_.end() || !tests_ends()) return;
  Running& running = it->second;
  ++running.tokens;
  running.steps = std::max<int64_t>(1, running.steps - 1);
  running.token_step = memory_.now();
  ++step_tokens_;
}

void KvAdmission::Remove(uint64_t id) {
  const auto it = running_.find(id);
  if (it == running_.end()) return;
  if (it->second.token_step == memory_.now()) --step_tokens_;
  if (memory_.Find(id) != nullptr) memory_.Remove(id, memory_.now());
  running_.erase(it);
}

void KvAdmission::EndStep() {
  closed_ = only_overdue_ = false;
  if (!tests_ends()) return;
  memory_.Advance(memory_.now() + 1);
  EnterPrompts();
  // Each running request waits for its first token (prompts_), had a token in this step, or paused.
  if (step_tokens_ + static_cast<int64_t>(prompts_.size()) < static_cast<int64_t>(running_.size()))
    EnterPaused();
  step_tokens_ = 0;
}

void KvAdmission::EnterPrompts() {
  std::erase_if(prompts_, [&](uint64_t id) {
    const auto it = running_.find(id);
    if (it == running_.end()) return true;
    Running& running = it->second;
    running.waits = running.token_step < 0;
    const bool late = running.waits && memory_.now() - running.first_step > running.prompt_steps;
    // Its entry assumed that the first token may come as late as the last possible step.
    if (late || (!running.waits && running.prompt_steps > 0)) {
      running.prompt_steps = 0;
      Enter(id, running);
    }
    return !running.waits;
  });
}

void KvAdmission::EnterPaused() {
  for (const auto& [id, running] : running_) {
    if (!running.waits && running.token_step < memory_.now() - 1) Enter(id, running);
  }
}

}  // namespace bfio::worker
