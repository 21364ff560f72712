#include "router/engine_link/engine_barrier.h"

#include "absl/strings/str_cat.h"

namespace bfio::router {

void BarrierCost::Add(uint64_t rank, const BatchLoad& batch, absl::Duration step) {
  if (std::find(ranks_.begin(), ranks_.end(), rank) != ranks_.end()) EndStep();
  ranks_.push_back(rank);
  batches_.push_back(batch);
  took_s_.push_back(absl::ToDoubleSeconds(step));
}

void BarrierCost::EndStep() {
  constexpr double kUnlikeWeight = 1.0 / 64;
  const auto median = took_s_.begin() + std::ssize(took_s_) / 2;
  std::nth_element(took_s_.begin(), median, took_s_.end());
  double took_s = *median;
  if (fit_.cost() && version() >= kMatureVersion) {
    const double expected = fit_.cost()->Seconds(batches_);
    const double near = std::clamp(took_s, expected / kUnlike, kUnlike * expected);
    unlike_ += kUnlikeWeight * ((near != took_s ? 1 : 0) - unlike_);
    if (unlike_ < 0.5) took_s = near;
  }
  fit_.Add(batches_, took_s);
  ranks_.clear();
  batches_.clear();
  took_s_.clear();
}

void BarrierWatch::OnStep(uint64_t rank, bool decodes) {
  if (!decodes) return OnIdle(rank);
  const auto it = steps_.find(rank);
  if (it == steps_.end()) {
    steps_[rank] = 0;
    return StartOver();
  }
  if (++it->second < kSteps) return;
  if (steps_.size() > 1) {
    fewest_ = std::min_element(steps_.begin(), steps_.end(), [](const auto& a, const auto& b) {
                return a.second < b.second;
              })->second;
    most_ = it->second;
    const bool apart = static_cast<double>(most_ - fewest_) > kShare * static_cast<double>(most_);
    apart_ = apart ? apart_ + 1 : 0;
  }
  StartOver();
}

void BarrierWatch::OnIdle(uint64_t rank) {
  if (steps_.erase(rank) > 0) StartOver();
}

void BarrierWatch::StartOver() {
  for (auto& [rank, steps] : steps_) steps = 0;
}

std::string BarrierWatch::TakeWarning() {
  if (told_ || apart_ < kWindows) return "";
  told_ = true;
  return absl::StrCat("one of its ranks took ", most_, " steps while another that decoded took ", fewest_);
}

}  // namespace bfio::router
