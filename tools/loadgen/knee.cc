#include "tools/loadgen/knee.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bfio::loadgen {
namespace {

// Seconds that a request with `decode_tokens` tokens after the first takes.
double TypicalSeconds(const HalfLevel& half, double decode_tokens) {
  const double per_token =
      half.decode_tokens > 0 ? half.decode_s / static_cast<double>(half.decode_tokens) : 0;
  return half.ttft_sum_s / static_cast<double>(half.requests) + decode_tokens * per_token;
}

// The served share of completed requests: their rate of completion over the rate at which they are due.
double Following(const Level& level) {
  const HalfLevel& first = level.halves[0];
  const HalfLevel& second = level.halves[1];
  if (first.requests == 0 || second.requests == 0) return 1;
  const double decode_tokens = static_cast<double>(first.decode_tokens + second.decode_tokens) /
                               static_cast<double>(first.requests + second.requests);
  const double later = second.due_sum_s / static_cast<double>(second.requests) -
                       first.due_sum_s / static_cast<double>(first.requests);
  const double longer = TypicalSeconds(second, decode_tokens) - TypicalSeconds(first, decode_tokens);
  return later > 0 ? 1 / (1 + std::max(0.0, longer / later)) : 1;
}

}  // namespace

Verdict Judge(const Level& level, bool limits) {
  Verdict verdict;
  // The level was cut short. The cancelled requests are the slow ones, so the others would mislead.
  if (level.sent > level.completed + level.failed) return verdict;
  if (level.completed + level.failed + level.not_sent < kFewestRequests) return verdict;
  const auto due = static_cast<double>(level.completed + level.failed + level.not_sent);
  if (limits) verdict.good_share = static_cast<double>(level.good) / due;
  verdict.served_share = Following(level) * static_cast<double>(level.completed) / due;
  verdict.kind = Verdict::kHeld;
  if (*verdict.served_share < kFollow) verdict.kind = Verdict::kFellBehind;
  if (limits && *verdict.good_share < kAttainment) {
    verdict.kind = Verdict::kMissedGoodput;
  }
  return verdict;
}

std::optional<Knee> FindKnee(const std::vector<Level>& levels, bool limits) {
  Knee knee;
  bool judged = false;
  bool failed_before = false;
  for (const Level& level : levels) {
    const Verdict verdict = Judge(level, limits);
    if (verdict.kind == Verdict::kNotJudged) continue;
    judged = true;
    if (!verdict.failed()) {
      knee = {.held = level.rate};
    } else if (!knee.failed.has_value()) {
      knee.failed = level.rate;
      knee.reason = verdict;
    }
    if (verdict.failed() && failed_before) break;
    failed_before = verdict.failed();
  }
  return judged ? std::optional<Knee>(knee) : std::nullopt;
}

bool TwoFailed(const std::vector<Level>& levels, uint32_t last, bool limits) {
  int failed = 0;
  for (uint32_t i = last + 1; i > 0 && failed < 2; --i) {
    const Verdict verdict = Judge(levels[i - 1], limits);
    if (verdict.kind == Verdict::kHeld) return false;
    failed += verdict.failed();
  }
  return failed == 2;
}

std::string KneeText(const Knee& knee) {
  std::string text = knee.held.has_value() ? absl::StrFormat("%.4g requests/s held", *knee.held)
                                           : std::string("no rate held");
  if (!knee.failed.has_value())
    return absl::StrCat(text, "; no tested rate failed, so the knee is higher: test higher rates");
  absl::StrAppendFormat(&text, "; %.4g not held: ", *knee.failed);
  if (knee.reason.kind == Verdict::kMissedGoodput) {
    absl::StrAppendFormat(&text, "%.1f %% of requests met the latency limits, at least %.1f %% required",
                          knee.reason.good_share.value_or(0) * 100, kAttainment * 100);
  } else {
    absl::StrAppendFormat(&text, "throughput fell behind, about %.0f %% of the offered rate served",
                          knee.reason.served_share.value_or(0) * 100);
  }
  return text;
}

const char* VerdictName(Verdict::Kind kind) {
  constexpr const char* kNames[] = {"too few requests", "held", "goodput", "fell behind"};
  return kNames[kind];
}

}  // namespace bfio::loadgen
