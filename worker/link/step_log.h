// A line per step and rank, with the content of each step and the duration of its parts: CSV with a header,
// written in the background (common/base/background_writer.h). The file is bounded: at half the bound PATH is
// renamed to PATH.1, replacing an earlier PATH.1. When the disk fails, or is too slow, this log ends; the
// steps continue. Threads: AddRank from one thread before any Append; each Rank is used by its step loop.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/background_writer.h"
#include "common/cost/batch_time.h"

namespace bfio::worker {

// One step of one rank. Times in nanoseconds.
struct StepRow {
  uint64_t epoch = 0;
  int64_t step = 0;
  int32_t rank = 0;
  // World size.
  int32_t ranks = 0;
  // L_g.
  int64_t load_tokens = 0;
  // Requests that generated a token, those of them that began with this step, those that ended.
  int32_t active = 0;
  int32_t admitted = 0;
  int32_t finished = 0;
  // Prompt tokens processed.
  int64_t prefill_tokens = 0;
  int64_t local_ns = 0;
  int64_t barrier_wait_ns = 0;
  // From the end of the barrier before to the local work. Absent in an epoch's first step and after an idle
  // wait.
  std::optional<int64_t> gap_ns;
  // When the barrier ended, on the machine's monotonic clock.
  int64_t end_ns = 0;
  // StepOutput::batch.
  BatchLoad batch;
};

class StepLog {
 public:
  static constexpr int64_t kMinBytes = 64 << 10;
  static constexpr absl::Duration kPoll = absl::Milliseconds(100);
  // Upper bound of the rows that are not written yet: minutes of steps.
  static constexpr int64_t kWaitingBytes = 4 << 20;
  static constexpr absl::string_view kHeader =
      "worker,epoch,step,rank,ranks,load_tokens,active,admitted,finished,prefill_tokens,local_ns,barrier_"
      "wait_ns,"
      "gap_ns,end_ns,batch_tokens,prefill_pairs,decode_context\n";

  class Rank {
   public:
    // Costs some microseconds.
    void Append(const StepRow& row);

   private:
    friend class StepLog;
    Rank(std::string worker, BackgroundWriter* writer) : worker_(std::move(worker)), writer_(writer) {}

    const std::string worker_;
    BackgroundWriter* const writer_;
  };

  // INVALID_ARGUMENT for a bound that is too small; the system's error when the file cannot be written. An
  // existing file becomes PATH.1; a path that is not a regular file is written to directly.
  static absl::StatusOr<std::unique_ptr<StepLog>> Open(const std::string& path, int64_t max_bytes);

  // `worker` is the name in the rows' first column. The log must outlive all calls of Append.
  Rank* AddRank(absl::string_view worker);

 private:
  explicit StepLog(BackgroundWriter::Options writer) : writer_(std::move(writer)) {}

  BackgroundWriter writer_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace bfio::worker
