// The progress of the run, on standard error.
//
// Purpose: a line that is redrawn on a terminal, and a plain line every few seconds elsewhere (such as a log
// file). Threads: one. Cost: nothing between two redraws.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/time/time.h"

namespace bfio::loadgen {

struct ProgressView {
  double elapsed_s = 0;
  // 0 when the number of requests is not known.
  uint64_t total = 0;
  uint64_t completed = 0;
  uint64_t failed = 0;
  uint64_t under_way = 0;
  uint64_t tokens = 0;
};

class Progress {
 public:
  explicit Progress(bool terminal) : terminal_(terminal) {}

  // Draws when enough time has passed; `view` is called only then.
  void Update(absl::Time now, const std::function<ProgressView()>& view);

  // Removes the line of a terminal.
  void Clear();

 private:
  const bool terminal_;
  absl::Time next_ = absl::InfinitePast();
  // The view at the last drawing, from which the current rate is computed.
  ProgressView last_;
};

}  // namespace bfio::loadgen
