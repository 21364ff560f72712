// The progress of the run, on standard error.
//
// Purpose: a bar that is redrawn on a terminal, and a plain line every few seconds elsewhere (such as a log
// file). Threads: one. Cost: nothing between two redraws.
#ifndef BFIO_TOOLS_LOADGEN_PROGRESS_H_
#define BFIO_TOOLS_LOADGEN_PROGRESS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"

namespace bfio::loadgen {

struct ProgressView {
  double elapsed_s = 0;
  // 0 when the run is not limited in this way.
  double duration_s = 0;
  uint64_t total = 0;
  uint64_t sent = 0;
  uint64_t completed = 0;
  uint64_t failed = 0;
  uint64_t under_way = 0;
  uint64_t tokens = 0;
};

// The line without the bar: "1200 of 2000 done, 64 under way, 0 failed, 8123 tokens/s".
std::string ProgressText(const ProgressView& view, double tokens_per_s);

// Progress from 0 to 1, against the limit that is nearer.
double ProgressFraction(const ProgressView& view);

class Progress {
 public:
  explicit Progress(bool terminal) : terminal_(terminal) {}

  // Draws when enough time has passed; `view` is called only then.
  void Update(absl::Time now, const std::function<ProgressView()>& view);

  // Removes the bar.
  void Clear();

 private:
  const bool terminal_;
  absl::Time next_ = absl::InfinitePast();
  // Values at the last drawing, from which the current rate is computed.
  double last_elapsed_s_ = 0;
  uint64_t last_tokens_ = 0;
  bool drawn_ = false;
};

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_PROGRESS_H_
