// A line per step and rank, for readers and for bfio_sim calibrate. Records the content of each step and the
// duration of its parts, as CSV with a header. The step loop copies a row into a buffer of its rank; a thread
// of the log's own formats and writes, every kPoll. The file is bounded: at half the bound PATH is renamed to
// PATH.1, replacing an earlier PATH.1. When the disk fails, or is so slow that a rank's buffer is full, this
// log ends, with one line in the program's log; the steps continue. Threads: AddRank from one thread before
// any Append; each Rank is used by its step loop.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/append_file.h"
#include "common/base/mutex.h"
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
  // Upper bound of a rank's rows that are not written yet: minutes of steps.
  static constexpr size_t kMaxRows = 1 << 15;
  // How long the destructor waits for a disk that hangs.
  static constexpr absl::Duration kPatience = absl::Seconds(2);
  static constexpr absl::string_view kHeader =
      "worker,epoch,step,rank,ranks,load_tokens,active,admitted,finished,prefill_tokens,local_ns,barrier_"
      "wait_ns,"
      "gap_ns,end_ns,batch_tokens,prefill_pairs,decode_context\n";

  class Rank {
   public:
    // Costs a copy and an uncontended lock.
    void Append(const StepRow& row);

   private:
    friend class StepLog;
    explicit Rank(std::string worker) : worker_(std::move(worker)) {}

    const std::string worker_;
    Mutex mutex_;
    std::vector<StepRow> rows_ ABSL_GUARDED_BY(mutex_);
    // A row did not fit, or the disk has failed: no more rows are accepted.
    bool full_ ABSL_GUARDED_BY(mutex_) = false;
    bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  };

  // INVALID_ARGUMENT for a bound that is too small; the system's error when the file cannot be written. An
  // existing file becomes PATH.1; a path that is not a regular file is written to directly.
  static absl::StatusOr<std::unique_ptr<StepLog>> Open(const std::string& path, int64_t max_bytes);
  ~StepLog();

  // `worker` is the name in the rows' first column. The log must outlive all calls of Append.
  Rank* AddRank(absl::string_view worker);

 private:
  // Shared with a thread that may outlive this, if its disk hangs.
  struct State;
  explicit StepLog(std::shared_ptr<State> state);
  static void Run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace bfio::worker
