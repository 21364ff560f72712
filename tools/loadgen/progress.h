// How far the run is, on standard error.
//
// Purpose: a bar that redraws itself on a terminal, a plain line every few seconds elsewhere (logs of a
// pipeline). Threads: one. Cost: nothing between two redraws.
#ifndef BFIO_TOOLS_LOADGEN_PROGRESS_H_
#define BFIO_TOOLS_LOADGEN_PROGRESS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"

namespace bfio::loadgen {

struct ProgressView {
  double elapsed_s = 0;
  // 0 when the run has no such end.
  double duration_s = 0;
  uint64_t total = 0;
  uint64_t sent = 0;
  uint64_t completed = 0;
  uint64_t failed = 0;
  uint64_t under_way = 0;
  uint64_t tokens = 0;
};

// The line without bar: "1200 of 2000 done, 64 under way, 0 failed, 8123 tokens/s".
std::string ProgressText(const ProgressView& view, double tokens_per_s);

// Done, 0 to 1: the nearer of the two ends.
double ProgressFraction(const ProgressView& view);

class Progress {
 public:
  explicit Progress(bool terminal) : terminal_(terminal) {}

  // Draws when it is time to; `view` is called only then.
  void Update(absl::Time now, const std::function<ProgressView()>& view);

  // Takes the bar away.
  void Clear();

 private:
  const bool terminal_;
  absl::Time next_ = absl::InfinitePast();
  // At the last drawing, for the live rate.
  double last_elapsed_s_ = 0;
  uint64_t last_tokens_ = 0;
  bool drawn_ = false;
};

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_PROGRESS_H_
