// State for resuming streams: histories within a budget, ended requests, and early resumes. Keeps the charged
// bytes (ReplayBudget); ended requests for clients that may have missed the end; the deadlines of requests
// without a client; ended streams whose clients may still have to read; and resumes that arrived before the
// workers that hold the request. Bounded: bytes by the budget, early resumes by number and bytes. It ends no
// request itself; its caller (RequestLifecycle) does. Threads: the decision thread's.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/fair_share.h"
#include "router/requests/request_table.h"
#include "router/requests/token_sink.h"

namespace bfio::router {

// Budget of the bytes that the router keeps for replays and resumes: prompts and delivered tokens. Bounds the
// sum and each request. A request beyond a bound continues, but is not replayed when its worker is lost. Pure
// counting; the decision thread's.
class ReplayBudget {
 public:
  // Both in bytes.
  ReplayBudget(int64_t total, int64_t per_request)
      : shares_(FairShares::WholeWhileAlone(total)), per_request_(per_request) {}

  enum class Outcome { kKept, kRequestTooLarge, kFull };

  // Charges `bytes` to a request unless that exceeds a bound, or its tenant's share. REQUIRES: bytes >= 0;
  // `held` is the request's sum of earlier charges, 0 at first.
  [[nodiscard]] Outcome Charge(const std::string& tenant, int64_t& held, int64_t bytes) {
    if (held + bytes > per_request_) return Outcome::kRequestTooLarge;
    if (!shares_.Take({tenant, ""}, bytes)) return Outcome::kFull;
    held += bytes;
    return Outcome::kKept;
  }

  void Release(const std::string& tenant, int64_t& held) {
    if (held > 0) shares_.Give({tenant, ""}, std::exchange(held, 0));
  }

  int64_t used() const { return shares_.used(); }

 private:
  FairShares shares_;
  const int64_t per_request_;
};

struct ResumeOptions {
  // Bytes kept for replays and resumes: of all requests, and of one.
  int64_t budget_bytes = int64_t{256} << 20;
  int64_t request_bytes = int64_t{1} << 20;
  // How long a resumable request, running or ended, waits for its client.
  absl::Duration timeout = absl::Seconds(30);
  // How long an ended stream waits for its client to read what was written.
  absl::Duration linger = absl::Seconds(30);
  // Bounds of early resumes: their number, and the bytes of their token ids.
  int64_t max_early = 4096;
  int64_t max_early_bytes = int64_t{512} << 20;
};

// A resume that arrived before the workers that may hold its request.
struct EarlyResume {
  core::RequestId id = 0;
  ClientRequest request;
  std::shared_ptr<TokenSink> sink;
};

class ResumeStore {
 public:
  explicit ResumeStore(const ResumeOptions& options)
      : options_(options), budget_(options.budget_bytes, options.request_bytes) {}

  // --- bytes ---

  ReplayBudget::Outcome Charge(RequestRecord& record, int64_t bytes) {
    return budget_.Charge(record.request.tenant, record.kept_bytes, bytes);
  }
  void Release(RequestRecord& record) { budget_.Release(record.request.tenant, record.kept_bytes); }
  int64_t bytes() const { return budget_.used(); }

  // --- requests without a client ---

  // Starts the time that the request waits for its client.
  void Wait(RequestRecord& record, absl::Time now);
  // Keeps an ended request; sets record.ended.
  void Retain(RequestRecord& record, const Finish& finish, absl::Time now);
  // A retained request is removed.
  void OnForgotten(const RequestRecord& record) { ended_count_ -= record.ended ? 1 : 0; }
  int64_t ended() const { return ended_count_; }
  // Removes and returns the retained request that ended first; empty when there is none.
  std::optional<core::RequestId> TakeOldestEnded(const RequestTable& table);
  // Removes the next entry whose deadline has passed and returns its request. The client may have reconnected
  // meanwhile, so the caller checks that. When no deadline has passed, drops the entries of removed requests.
  std::optional<core::RequestId> TakeExpired(const RequestTable& table, absl::Time now);
  // Entries kept for TakeOldestEnded, including those of removed requests.
  size_t ended_entries() const { return ended_.size(); }

  // --- streams that have ended ---

  void Linger(const std::shared_ptr<TokenSink>& sink, absl::Time now);
  // Breaks streams off whose clients have not read in time.
  void BreakOffLingering(absl::Time now);

  // --- early resumes ---

  // False beyond the tenant's share of a bound, or its `concurrent` requests (0: no limit).
  bool Hold(EarlyResume& early, int64_t concurrent = 0);
  std::vector<EarlyResume> TakeEarly();
  // The early resume that arrived on this stream.
  std::optional<EarlyResume> TakeEarlyBySink(uint64_t sink_id);
  bool has_early() const { return !early_.empty(); }

  // The next deadline of TakeExpired and BreakOffLingering.
  absl::Time next_deadline() const;

 private:
  const ResumeOptions options_;
  ReplayBudget budget_;
  // When requests without a client expire; entries may be out of date.
  std::deque<std::pair<absl::Time, core::RequestId>> deadlines_;
  // Oldest first; may include requests that were removed since the last TakeExpired. ended_count_: those that
  // are not removed.
  std::deque<core::RequestId> ended_;
  int64_t ended_count_ = 0;
  std::deque<std::pair<absl::Time, std::weak_ptr<TokenSink>>> lingering_;
  std::vector<EarlyResume> early_;
  // Of the number and bytes of early resumes; cancelled ones count until TakeEarly.
  FairShares early_requests_{options_.max_early}, early_bytes_{options_.max_early_bytes};
};

}  // namespace bfio::router
