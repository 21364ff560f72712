// One attempt at one request: a Generate stream, checked and timed.
//
// Purpose: turns the messages of a client::StreamCall into one AttemptResult. Threads: messages are taken by
// gRPC's threads, one at a time per stream, which also call `done`.
#ifndef BFIO_TOOLS_LOADGEN_CLIENT_STREAM_H_
#define BFIO_TOOLS_LOADGEN_CLIENT_STREAM_H_

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

// What a request's streams have brought so far; one stream at a time works on it. Times by MonotonicNow.
struct Received {
  // Ids, kept with `resumable` only; and the newest ticket that came with them.
  std::vector<uint32_t> ids;
  std::string resume_ticket;
  uint32_t tokens = 0;
  std::optional<absl::Time> first_token;
  absl::Time last_token;
  std::vector<TokenGap> gaps;
  // Tokens that came again after a resume and were others than before.
  uint64_t mismatches = 0;
};

struct AttemptResult {
  grpc::Status status;
  // First promise broken by the stream, "" if none.
  std::string breach;
  // It is how the stream ended; a cancellation that crosses the end looks like that.
  bool breach_at_end = false;
  // By MonotonicNow.
  absl::Time end;
};

struct Attempt {
  std::string request_id;
  PlannedRequest planned;
  // Of a call of an agent.
  std::string parent_id;
  // Asked for; zero: not.
  absl::Duration ttft_objective, tpot_objective, agent_timeout;
  // Outlives the attempt.
  const client::Metadata* metadata = nullptr;
  std::shared_ptr<Received> received;
  // Sends the request so that it can be resumed, with this secret; empty: it ends with its stream.
  std::string resume_token;
  // Goes on with a request whose stream broke.
  bool resume = false;
  // Of the RPC, by the wall clock, as gRPC wants it.
  absl::Time deadline;
  // Counts tokens as they come, for the live rate; may be shared.
  std::atomic<uint64_t>* live_tokens = nullptr;
  std::function<void(AttemptResult)> done;
};

// Starts the RPC; the caller may cancel it. `done` is called exactly once, when the stream no longer refers
// to stub and channel.
std::shared_ptr<client::StreamCall> StartStream(v1::Inference::Stub& stub, Attempt attempt);

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_CLIENT_STREAM_H_
