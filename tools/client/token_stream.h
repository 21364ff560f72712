// One request and its tokens, over one or more streams.
//
// Purpose: the caller pulls events. Retries, resumes and their pauses happen inside Next, on the caller's
// thread, so the library has no threads of its own. When a caller does not pull, the router's messages stop
// too, and the router disconnects it after --client_timeout.
// Threads: one thread at a time calls Next; any thread may call Cancel, also while Next waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "bfio/v1/inference.pb.h"
#include "common/base/backoff.h"
#include "common/base/mutex.h"

namespace bfio::client {

class Link;
class StreamReader;

// Which calls are tried again.
struct RetryOptions {
  // Refusals that a request may receive and still be sent again before its first token: RESOURCE_EXHAUSTED
  // with RetryInfo, UNAVAILABLE. 0: none.
  int max_retries = 5;
  // How long a resumable request tries to resume its broken stream without receiving a message. The router
  // ends the request after its --client_timeout.
  absl::Duration resume_patience = absl::Seconds(30);
  absl::Duration first_pause = absl::Milliseconds(50);
  absl::Duration last_pause = absl::Seconds(2);
};

struct CallOptions {
  // Timeout of the whole request, retries and resumes included.
  absl::Duration timeout = absl::Minutes(5);
  // Which failures are tried again, and for how long.
  RetryOptions retry;
  // Sends the request as resumable: a broken stream resumes where it broke, whatever the cause. This costs
  // memory for the request's tokens in the client, the router and the worker, and one Abort RPC per cancelled
  // request.
  bool resume = false;
  // Bearer token of this request, instead of the client's.
  std::string token;
  // Headers that are sent with the request, such as traceparent. Names are in lower case.
  std::vector<std::pair<std::string, std::string>> metadata;
};

// Consecutive tokens of the request; the first has index `first_index`.
struct Tokens {
  uint32_t first_index = 0;
  std::vector<uint32_t> ids;
};
// Nothing arrived within the patience given to Next.
struct StillWaiting {};

class TokenStream {
 public:
  using Event = std::variant<StillWaiting, Tokens, v1::Finish, absl::Status>;

  // Retries and resumes, which Next does not report as events.
  struct Counts {
    int retries = 0;
    int resumes = 0;
  };

  TokenStream(Link& link, v1::GenerateRequest request, CallOptions options);
  TokenStream(const TokenStream&) = delete;
  TokenStream& operator=(const TokenStream&) = delete;
  // Cancels the request if it has not ended.
  ~TokenStream();

  // The next tokens, or the end: v1::Finish when the request has ended and all its tokens were returned, or
  // an error (with the router's RetryInfo, if there is one: common/net/status.h). Later calls return the end
  // again. DATA_LOSS when tokens are missing or repeated, by a fault of the router or a proxy.
  Event Next(absl::Duration patience = absl::InfiniteDuration());

  // Next then returns CANCELLED, unless the request has ended before. A resumable request is aborted at the
  // router too; a router that the Abort does not reach ends it after its --client_timeout.
  void Cancel();

  const std::string& request_id() const { return request_.request_id(); }
  // Only for the thread that calls Next.
  const Counts& counts() const { return counts_; }
  // Number of tokens that Next has returned.
  uint32_t received() const { return received_; }

 private:
  void Begin();
  // The event that follows from a message, or from the end of a stream; empty when there is none yet.
  std::optional<Event> OnMessage(const v1::GenerateResponse& message);
  std::optional<Event> OnStreamEnd(const absl::Status& status);
  Event End(Event event);
  // Whether the request is sent again after `status`; sets pause_until_ if so.
  bool TryAgain(const absl::Status& status);
  // Waits until the end of the pause, `until` or Cancel, whichever comes first.
  void SleepUntil(absl::Time until);
  bool Cancelled();
  void SendAbort();

  Link& link_;
  const CallOptions options_;
  const absl::Time deadline_;  // of MonotonicNow, as all times here
  v1::GenerateRequest request_;
  const bool own_id_;
  Backoff backoff_;
  Counts counts_;
  uint32_t received_ = 0;
  // The router may have the request; a new attempt must then be a resume.
  std::atomic<bool> may_be_live_ = false;
  std::optional<v1::Finish> finish_;
  std::optional<absl::Time> pause_until_;
  // When the first stream since the last message broke. A refusal is not a broken stream.
  std::optional<absl::Time> broken_since_;

  Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  // Written only by the thread that calls Next, which reads it without the lock.
  std::shared_ptr<StreamReader> attempt_;
  std::optional<Event> end_;
};

}  // namespace bfio::client
