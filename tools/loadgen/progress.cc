#include "tools/loadgen/progress.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bfio::loadgen {
namespace {

constexpr absl::Duration kTerminalPeriod = absl::Milliseconds(250);
constexpr absl::Duration kLogPeriod = absl::Seconds(5);
constexpr int kBarWidth = 24;

}  // namespace

std::string ProgressText(const ProgressView& view, double tokens_per_s) {
  const uint64_t done = view.completed + view.failed;
  const std::string of = view.total > 0 ? absl::StrCat(" of ", view.total) : "";
  return absl::StrFormat("%d%s done, %d under way, %d failed, %.0f tokens/s", done, of, view.under_way,
                         view.failed, tokens_per_s);
}

double ProgressFraction(const ProgressView& view) {
  double fraction = 0;
  if (view.duration_s > 0) fraction = view.elapsed_s / view.duration_s;
  if (view.total > 0) {
    const auto done = static_cast<double>(view.completed + view.failed);
    fraction = std::max(fraction, done / static_cast<double>(view.total));
  }
  return std::clamp(fraction, 0.0, 1.0);
}

void Progress::Update(absl::Time now, const std::function<ProgressView()>& view) {
  if (now < next_) return;
  const bool first = next_ == absl::InfinitePast();
  next_ = now + (terminal_ ? kTerminalPeriod : kLogPeriod);
  if (first) return;  // no data for a rate yet
  const ProgressView v = view();
  const double seconds = v.elapsed_s - last_elapsed_s_;
  const double rate = seconds > 0 ? static_cast<double>(v.tokens - last_tokens_) / seconds : 0;
  last_elapsed_s_ = v.elapsed_s;
  last_tokens_ = v.tokens;
  const std::string text = ProgressText(v, rate);
  if (terminal_) {
    const int filled = static_cast<int>(ProgressFraction(v) * kBarWidth);
    const std::string bar = std::string(static_cast<size_t>(filled), '#') +
                            std::string(static_cast<size_t>(kBarWidth - filled), '.');
    std::fprintf(stderr, "\r\x1b[K[%s] %s", bar.c_str(), text.c_str());
  } else {
    std::fprintf(stderr, "bfio_loadgen: %.0f s: %s\n", v.elapsed_s, text.c_str());
  }
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::Clear() {
  if (terminal_ && drawn_) std::fputs("\r\x1b[K", stderr);
  drawn_ = false;
}

}  // namespace bfio::loadgen
