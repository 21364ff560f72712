// State for resuming streams: histories within a budget, ended requests, and waiting resumes.
//
// Purpose: the bytes kept per request (replay_budget.h), ended
// requests kept for a client that may have missed the end, the time until which requests without a client are
// kept, streams that have ended and may still wait for their clients, and resumes that arrived before the
// workers that hold the request. Bounded: bytes by the budget, early resumes by number and bytes. It ends
// nothing itself: the caller (RequestLifecycle) does. Threads: the decision thread's.
#ifndef BFIO_ROUTER_REQUESTS_RESUME_STORE_H_
#define BFIO_ROUTER_REQUESTS_RESUME_STORE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "router/requests/replay_budget.h"
#include "router/requests/request_table.h"
#include "router/requests/token_sink.h"

namespace bfio::router {

struct ResumeOptions {
  // What is kept for replays and resumes, in bytes: of all requests and of one.
  int64_t budget_bytes = int64_t{256} << 20;
  int64_t request_bytes = int64_t{1} << 20;
  // How long a resumable request waits for its client, running or ended.
  absl::Duration timeout = absl::Seconds(30);
  // How long an ended stream may wait for its client to take what was written.
  absl::Duration linger = absl::Seconds(30);
  // Early resumes: requests, and bytes of their token ids.
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
    return budget_.Charge(record.kept_bytes, bytes);
  }
  void Release(RequestRecord& record) { budget_.Release(record.kept_bytes); }
  int64_t bytes() const { return budget_.used(); }

  // --- requests without a client ---

  // From now on the request waits for its client.
  void Wait(RequestRecord& record, absl::Time now);
  // An ended request is kept. Sets record.ended.
  void Retain(RequestRecord& record, const Finish& finish, absl::Time now);
  // A retained request is forgotten.
  void OnForgotten(const RequestRecord& record) { ended_count_ -= record.ended ? 1 : 0; }
  int64_t ended() const { return ended_count_; }
  // The retained request that ended first, which is no longer kept track of; nothing when there is none.
  std::optional<core::RequestId> TakeOldestEnded(const RequestTable& table);
  // Whose time to come back is over, by now; some may have found a client meanwhile.
  std::optional<core::RequestId> TakeExpired(absl::Time now);

  // --- streams that have ended ---

  void Linger(const std::shared_ptr<TokenSink>& sink, absl::Time now);
  // Breaks off those whose clients have had time enough.
  void BreakOffLingering(absl::Time now);

  // --- early resumes ---

  // False when too much waits. A tenant may have as much in here as it leaves free for the others, so that no
  // flood of one keeps the rest out.
  bool Hold(EarlyResume& early);
  std::vector<EarlyResume> TakeEarly();
  // The one that came by this stream.
  std::optional<EarlyResume> TakeEarlyBySink(uint64_t sink_id);
  bool has_early() const { return !early_.empty(); }

  // Of TakeExpired and BreakOffLingering.
  absl::Time next_deadline() const;

 private:
  const ResumeOptions options_;
  ReplayBudget budget_;
  // When requests without a client are looked at; an entry may be out of date.
  std::deque<std::pair<absl::Time, core::RequestId>> deadlines_;
  // Oldest first; may name some that are gone. And how many there are.
  std::deque<core::RequestId> ended_;
  int64_t ended_count_ = 0;
  std::deque<std::pair<absl::Time, std::weak_ptr<TokenSink>>> lingering_;
  std::vector<EarlyResume> early_;
  // Requests and bytes of their token ids; those that were cancelled meanwhile count until the others are
  // answered.
  struct Held {
    int64_t requests = 0;
    int64_t bytes = 0;
  };
  Held early_held_;
  absl::flat_hash_map<std::string, Held> early_by_tenant_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_RESUME_STORE_H_
