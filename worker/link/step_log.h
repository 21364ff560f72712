// A line per step and rank, with the content of each step and the duration of its parts: CSV with a header,
// written in the background (common/base/background_writer.h). The file is bounded: at half the bound PATH is
// renamed to PATH.1, replacing an earlier PATH.1. When the disk fails, or is too slow, this log ends; the
// steps continue. Threads: AddRank from one thread before any Append; each Rank is used by its step loop.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/background_writer.h"
#include "worker/barrier/barrier.h"
#include "worker/link/messages.h"

namespace bfio::worker {

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
    // The row of a step with its line break, in some microseconds. `admitted`: requests that began with it;
    // `end_ns`: when its barrier ended, on the machine's monotonic clock.
    std::string Row(const StepReport& report, const GroupSpec& group, int32_t admitted, int64_t end_ns) const;
    void Append(absl::string_view row) { writer_->Append(row); }

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
