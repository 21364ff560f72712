// One attempt at one request: a Generate stream, checked and timed.
//
// Purpose: turns the messages of a client::StreamCall into one AttemptResult. Threads: gRPC's threads deliver
// messages, one at a time per stream, and call `done`.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "bfio/v1/inference.grpc.pb.h"
#include "tools/client/stream_call.h"
#include "tools/loadgen/results.h"
#include "tools/loadgen/schedule.h"

namespace bfio::loadgen {

// What all streams of a request have delivered so far. One stream at a time writes it. Times of MonotonicNow.
struct Received {
  // Token ids and the newest resume ticket; kept only for resumable requests.
  std::vector<uint32_t> ids;
  std::string resume_ticket;
  uint32_t tokens = 0;
  std::optional<absl::Time> first_token;
  absl::Time last_token;
  std::vector<TokenGap> gaps;
  // Tokens that were delivered again after a resume with another id.
  uint64_t mismatches = 0;
};

struct AttemptResult {
  grpc::Status status;
  // The first guarantee that the stream broke; empty if none.
  std::string breach;
  // The guarantee was broken by the way the stream ended. A cancellation at the same moment looks the same.
  bool breach_at_end = false;
  // Time of MonotonicNow.
  absl::Time end;
};

struct Attempt {
  std::string request_id;
  PlannedRequest planned;
  // Parent id, for a call of an agent.
  std::string parent_id;
  // Objectives and deadline sent with the request; zero: not sent.
  absl::Duration ttft_objective, agent_timeout;
  // Outlives the attempt.
  const client::Metadata* metadata = nullptr;
  std::shared_ptr<Received> received;
  // Secret with which the request is sent as resumable; empty: the request ends with its stream.
  std::string resume_token;
  // Continues a request whose stream broke.
  bool resume = false;
  // Deadline of the RPC by the wall clock, as gRPC requires.
  absl::Time deadline;
  // Counts tokens as they arrive, for the displayed rate; may be shared.
  std::atomic<uint64_t>* live_tokens = nullptr;
  std::function<void(AttemptResult)> done;
};

// Starts the RPC; the caller may cancel it. `done` is called exactly once, when the stream no longer refers
// to stub and channel.
std::shared_ptr<client::StreamCall> StartStream(v1::Inference::Stub& stub, Attempt attempt);

}  // namespace bfio::loadgen
