#include "tools/loadgen/progress.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bfio::loadgen {
namespace {

constexpr absl::Duration kTerminalPeriod = absl::Milliseconds(250);
constexpr absl::Duration kLogPeriod = absl::Seconds(5);

}  // namespace

void Progress::Update(absl::Time now, const std::function<ProgressView()>& view) {
  if (now < next_) return;
  const bool first = next_ == absl::InfinitePast();
  next_ = now + (terminal_ ? kTerminalPeriod : kLogPeriod);
  if (first) return;  // no data for a rate yet
  const ProgressView v = view();
  const double seconds = v.elapsed_s - last_.elapsed_s;
  const double rate = seconds > 0 ? static_cast<double>(v.tokens - last_.tokens) / seconds : 0;
  last_ = v;
  absl::FPrintF(stderr, "%sbfio_loadgen: %.0f s: %d%s done, %d under way, %d failed, %.0f tokens/s%s",
                terminal_ ? "\r\x1b[K" : "", v.elapsed_s, v.completed + v.failed,
                v.total > 0 ? absl::StrCat(" of ", v.total) : "", v.under_way, v.failed, rate,
                terminal_ ? "" : "\n");
  std::fflush(stderr);
}

void Progress::Clear() {
  if (terminal_) std::fputs("\r\x1b[K", stderr);
}

}  // namespace bfio::loadgen
