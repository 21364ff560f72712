#include "tools/sim/rank/drift.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace bfio::sim {
namespace {

constexpr int64_t kLargestIncrement = 1'000'000;
constexpr int64_t kLongestDraft = 64;

}  // namespace

absl::StatusOr<Drift> Drift::Parse(const std::string& text, uint64_t seed) {
  const auto bad = [&](const char* why) {
    return absl::InvalidArgumentError(
        absl::StrCat("--drift=", text, ": ", why,
                     "; choose one of growth, constant, speculative:DRAFT:PROBABILITY, throttled:SHARE or "
                     "sequence:A,B,.."));
  };
  Drift drift(seed);
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  const std::string& kind = parts[0];
  if (kind == "growth" && parts.size() == 1) return drift;
  const bool constant = kind == "constant" && parts.size() == 1;
  if (constant || kind == "throttled") {
    drift.kind_ = Kind::kThrottled;
    drift.share_ = 0;
    if (!constant && (parts.size() != 2 || !absl::SimpleAtod(parts[1], &drift.share_)))
      return bad("expected throttled:SHARE");
    if (!(drift.share_ >= 0 && drift.share_ <= 1)) return bad("SHARE must be within 0..1");
    return drift;
  }
  if (kind == "speculative") {
    drift.kind_ = Kind::kSpeculative;
    if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &drift.draft_) ||
        !absl::SimpleAtod(parts[2], &drift.accept_)) {
      return bad("expected speculative:DRAFT:PROBABILITY");
    }
    if (drift.draft_ < 1 || drift.draft_ > kLongestDraft) return bad("DRAFT must be within 1..64");
    if (!(drift.accept_ >= 0 && drift.accept_ <= 1)) return bad("PROBABILITY must be within 0..1");
    return drift;
  }
  if (kind == "sequence" && parts.size() == 2) {
    drift.kind_ = Kind::kSequence;
    for (const auto& item : absl::StrSplit(parts[1], ',')) {
      int64_t increment = 0;
      if (!absl::SimpleAtoi(item, &increment)) return bad("expected whole numbers");
      if (increment < 0 || increment > kLargestIncrement) return bad("increments must be within 0..1000000");
      drift.round_.push_back((drift.round_.empty() ? 0 : drift.round_.back()) + increment);
    }
    return drift;
  }
  return bad("unknown drift");
}

Drift Drift::Steady(double tokens_per_step) {
  Drift drift(0);
  drift.share_ = tokens_per_step;
  return drift;
}

int64_t Drift::GrowthThrough(int64_t step) {
  if (kind_ == Kind::kThrottled) return static_cast<int64_t>(std::floor(share_ * static_cast<double>(step)));
  if (kind_ != Kind::kSequence) return TokensThrough(step);
  const auto size = std::ssize(round_), rest = step % size;
  return step / size * round_.back() + (rest == 0 ? 0 : round_[static_cast<size_t>(rest) - 1]);
}

int64_t Drift::TokensThrough(int64_t step) {
  if (kind_ == Kind::kSteady) return static_cast<int64_t>(share_ * static_cast<double>(step) + 1e-6);
  if (kind_ != Kind::kSpeculative) return step;
  DrawThrough(step);
  return drawn_[static_cast<size_t>(step)];
}

int64_t Drift::StepWith(int64_t tokens) {
  if (kind_ == Kind::kSteady) {
    auto step = static_cast<int64_t>(static_cast<double>(tokens) / share_);
    while (TokensThrough(step) < tokens) ++step;
    return step;
  }
  if (kind_ != Kind::kSpeculative) return tokens;
  while (drawn_.back() < tokens) DrawThrough(static_cast<int64_t>(drawn_.size()));
  return std::lower_bound(drawn_.begin(), drawn_.end(), tokens) - drawn_.begin();
}

void Drift::DrawThrough(int64_t step) {
  while (static_cast<int64_t>(drawn_.size()) <= step) {
    int64_t tokens = 1;
    while (tokens <= draft_ && rng_.Uniform() < accept_) ++tokens;
    drawn_.push_back(drawn_.back() + tokens);
  }
}

}  // namespace bfio::sim
