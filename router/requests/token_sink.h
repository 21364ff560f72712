// Who gets a request's tokens: one stream of one client.
//
// Purpose: the line between the router's state and the front protocols. router/frontend implements it once
// per protocol; router/requests calls it. Ownership: shared by the request and the protocol's call object.
// Threads: Deliver, CatchUp and End are the decision thread's, never block and never write; Flush may write
// and is the sender thread's; BreakOff must not be called under a lock.
#ifndef BFIO_ROUTER_REQUESTS_TOKEN_SINK_H_
#define BFIO_ROUTER_REQUESTS_TOKEN_SINK_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "router/requests/request.h"

namespace bfio::router {

class TokenSink {
 public:
  virtual ~TokenSink() = default;

  // Names the stream in the router's life.
  virtual uint64_t id() const = 0;
  // W3C trace context of the call; empty: none.
  virtual const std::string& traceparent() const = 0;

  // The digest of the model that its tokens are of, where that is known; before they come.
  virtual void SetModel(const std::string& digest) = 0;

  enum class Delivery {
    kTaken,
    kFlush,    // and the caller has Flush called, once
    kTooSlow,  // not taken: the client does not read; the caller should end the stream
    kEnough,   // taken, and with them the output is complete (FinishReason::kStop); the caller ends the
               // request
  };
  // Appends tokens to what is to be written. REQUIRES: they follow those of the last call. Time is
  // MonotonicNow.
  [[nodiscard]] virtual Delivery Deliver(uint32_t index, absl::Span<const uint32_t> tokens,
                                         absl::Time now) = 0;
  // Once, before any Deliver: what a client that came back has missed, however much that is.
  virtual void CatchUp(uint32_t index, absl::Span<const uint32_t> tokens) = 0;

  // Ends the stream after what was delivered: with `finish` and OK, or with an error. Later calls do nothing.
  // Returns true when the caller must have Flush called.
  [[nodiscard]] virtual bool End(const absl::Status& status, std::optional<Finish> finish) = 0;

  // Starts a write if there is something to write and none is under way.
  virtual void Flush() = 0;
  // Breaks the call off if it has been ended and still waits for the client.
  virtual void BreakOff() = 0;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_TOKEN_SINK_H_
