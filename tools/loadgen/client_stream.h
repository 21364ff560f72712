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
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "bfio/v1/inference.grpc.pb.h"
#include "bfio/v1/inference.pb.h"
#include "tools/client/stream_call.h"
#include "tools/loadgen/results.h"
#include "tools/loadgen/schedule.h"

namespace bfio::loadgen {

// Checks that one response stream keeps the API's guarantees.
//
// Purpose: the load generator is also a test of the router. Tokens must arrive in order without gap or
// repetition, as many as requested (or fewer, where the model may end them), followed by exactly one `finish`
// whose usage agrees. Pure; one checker per stream, one thread at a time.
class StreamChecker {
 public:
  // `first_index`: the index from which the stream was requested; above 0 when it resumes a broken stream.
  // `open_ended`: the model may end the request early.
  StreamChecker(std::string request_id, uint32_t prompt_tokens, uint32_t output_tokens,
                uint32_t first_index = 0, bool open_ended = false)
      : request_id_(std::move(request_id)),
        prompt_tokens_(prompt_tokens),
        output_tokens_(output_tokens),
        open_ended_(open_ended),
        tokens_(first_index) {}

  void OnMessage(const v1::GenerateResponse& message);

  // The stream has ended. An error does not break a guarantee, but an error after `finish` does, unless the
  // connection broke (UNAVAILABLE): then the request is complete and only its status is missing.
  void OnEnd(absl::StatusCode code);

  // `finish` has arrived: the request is complete.
  bool finished() const { return finished_; }

  // Index of the next token: the number of tokens received, earlier streams included.
  uint32_t tokens() const { return tokens_; }
  // The first broken guarantee; empty while there is none.
  const std::string& breach() const { return breach_; }

 private:
  void CheckFinish(const v1::Finish& finish);
  void Breach(std::string text);

  const std::string request_id_;
  const uint32_t prompt_tokens_;
  const uint32_t output_tokens_;
  // The model may end the request before `output_tokens_`.
  const bool open_ended_;
  uint32_t tokens_;
  bool finished_ = false;
  std::string breach_;
};

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
  // Sent with the request; zero: not sent.
  absl::Duration ttft_objective;
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
