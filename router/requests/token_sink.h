// The receiver of a request's tokens: one stream of one client. The boundary between the router's state and
// the client protocols. router/frontend implements it once per protocol; router/requests calls it. Ownership:
// shared by the request and the protocol's call object. Threads: Deliver, CatchUp and End are the decision
// thread's, never block and never write; Flush may write and is the sender thread's; BreakOff must not be
// called under a lock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "router/requests/logprobs.h"
#include "router/requests/passed.h"
#include "router/requests/request.h"

namespace bfio::router {

class TokenSink {
 public:
  virtual ~TokenSink() = default;

  // Unique while the router runs.
  virtual uint64_t id() const = 0;
  // W3C trace context of the call; empty: none.
  virtual const std::string& traceparent() const = 0;

  // Digest of the model that generates the tokens, where known; called before the first token.
  virtual void SetModel(const std::string& digest) = 0;

  enum class Delivery {
    kTaken,
    kFlush,    // taken; the caller has Flush called, once
    kTooSlow,  // not taken: the client does not read, and the caller should end the stream
    kEnough,   // taken, and the output is complete (FinishReason::kStop): the caller ends the
               // request
  };
  // Appends tokens, which follow those of the last call, to those that wait to be written. `logprobs` are
  // those of the tokens; empty for requests without them (Sampling::logprobs). `now`: MonotonicNow.
  [[nodiscard]] virtual Delivery Deliver(uint32_t index, absl::Span<const uint32_t> tokens,
                                         const LogprobsView& logprobs, absl::Time now) = 0;
  // The same for a request that passes: messages of its engine, which hold the tokens. Only sinks of requests
  // that pass get any.
  [[nodiscard]] virtual Delivery Pass(absl::Span<const PassedPtr>, absl::Time) { return Delivery::kTaken; }
  // For Passing::starts_again: what was passed is void, and another engine starts again.
  virtual void StartOver() {}
  // The tokens that a reconnected client has missed, without a limit. At most once, before any Deliver.
  virtual void CatchUp(uint32_t index, absl::Span<const uint32_t> tokens, const LogprobsView& logprobs) = 0;

  // Ends the stream after the delivered tokens: with OK and `finish`, or with an error. Later calls do
  // nothing. Returns true when the caller must have Flush called.
  [[nodiscard]] virtual bool End(const absl::Status& status, std::optional<Finish> finish) = 0;

  // Whether the client has cancelled the call. Its owner may be notified later.
  virtual bool Cancelled() = 0;

  // Starts a write if tokens wait and no write is in progress.
  virtual void Flush() = 0;
  // Breaks the call off if it was ended and still waits for the client to read.
  virtual void BreakOff() = 0;
};

}  // namespace bfio::router
