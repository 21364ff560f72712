// The requests that a rank keeps for the next router. A router that crashes loses its state of the running
// requests. The workers continue, and announce each request to the next router: the original assignment and
// every token since. Requests that ended within the last `retain` are announced too. Only requests with a
// note (messages.h) are kept. Bounded: memory for the prompt and all tokens of a request is reserved when it
// is admitted, so nothing grows beyond the bound. A request without enough free memory is not kept; ended
// requests are removed in favour of running ones. Threads: the step loop's. Cost: a look-up per kept request
// and step.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "worker/link/messages.h"

namespace bfio::worker {

class HeldRequests {
 public:
  explicit HeldRequests(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // How long ended requests are kept.
  void set_retain(absl::Duration retain) { retain_ = retain; }

  // Call when the engine has accepted a request. The request is kept if memory suffices.
  void Admit(SequenceRequest request, RequestNote note);
  // Adds a step's tokens and ends, and removes requests that ended too long ago.
  void Take(const StepOutput& output, absl::Time now);
  // Call when the request was cancelled.
  void Drop(Handle handle);

  // All kept requests, in messages of about a megabyte, oldest handle first.
  std::vector<Announcement> Announce(uint64_t epoch) const;

  size_t size() const { return held_.size(); }
  // Reserved memory.
  int64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    HeldRequest held;
    int64_t bytes = 0;
    absl::Time ended;
  };

  // REQUIRES: ended_ is not empty.
  void DropOldestEnded();
  void End(Handle handle, Entry& entry, FinishCause cause, absl::Time now);

  const int64_t max_bytes_;
  absl::Duration retain_ = absl::ZeroDuration();
  absl::flat_hash_map<Handle, Entry> held_;
  // The requests in held_ that have ended, in the order of their ends.
  std::deque<Handle> ended_;
  int64_t bytes_ = 0;
};

}  // namespace bfio::worker
