#include "research/admission/lengths.h"

#include <algorithm>
#include <utility>

namespace bfio::sim {

LookaheadLengths::LookaheadLengths(std::unique_ptr<core::Lookahead> lookahead, double confidence)
    : lookahead_(std::move(lookahead)), confidence_(confidence), alive_(core::kMaxHorizonSteps + 1) {}

int64_t LookaheadLengths::Left(const AdmissionRequest& request, int64_t made) {
  const int64_t most = std::max<int64_t>(1, request.most - made);
  core::WaitingView view;
  view.id = request.id;
  view.prefill_tokens = request.prompt + made;
  view.generated_tokens = made;
  view.max_new_tokens = most;
  view.predicted_output_tokens = std::max<int64_t>(1, request.output - made);
  lookahead_->Curve(view, absl::MakeSpan(alive_));
  // alive_[h]: probability that it generates more than h further tokens.
  const auto enough =
      std::find_if(alive_.begin() + 1, alive_.end(), [&](double alive) { return alive <= 1 - confidence_; });
  return std::min<int64_t>(most, enough - alive_.begin());
}

void LookaheadLengths::Ended(const AdmissionRequest& request, int64_t made) {
  if (!lookahead_->learns()) return;
  core::Resident resident;
  resident.id = request.id;
  resident.prefill_tokens = request.prompt;
  resident.max_new_tokens = request.most;
  resident.group = lookahead_->GroupOf(0, request.prompt);
  // The token at the limit does not show whether the request would have ended there by itself.
  lookahead_->Observe(resident, core::HintTrail{}, 0, made, made < request.most);
  lookahead_->Advance();
}

}  // namespace bfio::sim
