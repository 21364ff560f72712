// One request and its tokens, over as many streams as it takes.
//
// Purpose: the caller pulls; retries, resumes and their pauses happen inside Next, on the caller's thread, so
// the library has no threads of its own. A caller that stops pulling stops the router's messages too (the
// router then cuts it off after its --client_timeout).
// Threads: Next takes one thread at a time; Cancel may be called from any, also while Next waits.
#ifndef BFIO_TOOLS_CLIENT_TOKEN_STREAM_H_
#define BFIO_TOOLS_CLIENT_TOKEN_STREAM_H_

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
#include "common/base/mutex.h"
#include "tools/client/retry.h"

namespace bfio::client {

class Link;
class StreamReader;

struct CallOptions {
  // Of the whole request, retries and resumes included.
  absl::Duration timeout = absl::Minutes(5);
  // What may be tried again, and how patiently.
  RetryOptions retry;
  // Sends the request as resumable: a broken stream resumes where it broke, whatever the cause.
  // Costs the memory of its tokens here, in router and worker, and a cancelled request one Abort.
  bool resume = false;
  // Instead of the client's.
  std::string token;
  // Headers that are passed on, such as traceparent. Names in lower case.
  std::vector<std::pair<std::string, std::string>> metadata;
};

// Token `first_index` of the request, and those after it.
struct Tokens {
  uint32_t first_index = 0;
  std::vector<uint32_t> ids;
};
// Nothing has come within the patience given.
struct StillWaiting {};

class TokenStream {
 public:
  using Event = std::variant<StillWaiting, Tokens, v1::Finish, absl::Status>;

  // What has to be tried again only counts here.
  struct Counts {
    int retries = 0;
    int resumes = 0;
  };

  TokenStream(Link& link, v1::GenerateRequest request, CallOptions options);
  TokenStream(const TokenStream&) = delete;
  TokenStream& operator=(const TokenStream&) = delete;
  // Cancels what has not ended.
  ~TokenStream();

  // The next tokens, or the end: v1::Finish when the request has ended and all its tokens were given, or an
  // error (with RetryInfo, if the router sent one: common/net/status.h). Later calls return the end
  // again. DATA_LOSS when tokens are missing or repeated: the router's fault, or a proxy's.
  Event Next(absl::Duration patience = absl::InfiniteDuration());

  // Next then says CANCELLED, unless the end has come. A resumable request is aborted too; if the router is
  // not there to hear it, it ends it after its --client_timeout.
  void Cancel();

  const std::string& request_id() const { return request_.request_id(); }
  // Of Next's thread.
  const Counts& counts() const { return counts_; }
  // Tokens given so far.
  uint32_t received() const { return received_; }

 private:
  void Begin();
  // What follows from a message, and from a stream's end; nothing while there is no event yet.
  std::optional<Event> OnMessage(const v1::GenerateResponse& message);
  std::optional<Event> OnStreamEnd(const absl::Status& status);
  Event End(Event event);
  // Sets pause_until_ when it makes sense.
  bool TryAgain(const absl::Status& status);
  // Waits for the end of the pause, `until` or Cancel.
  void SleepUntil(absl::Time until);
  bool Cancelled();
  void SendAbort();

  Link& link_;
  const CallOptions options_;
  const absl::Time deadline_;  // by MonotonicNow, as all times here
  v1::GenerateRequest request_;
  const bool own_id_;
  Backoff backoff_;
  Counts counts_;
  uint32_t received_ = 0;
  // The router may have the request: only a resume reaches it.
  std::atomic<bool> may_be_live_ = false;
  std::optional<v1::Finish> finish_;
  std::optional<absl::Time> pause_until_;
  // Of the first stream that broke since the last message; refusals at the door are none.
  std::optional<absl::Time> broken_since_;

  Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  // Changed by Next's thread only, which reads it without the lock.
  std::shared_ptr<StreamReader> attempt_;
  std::optional<Event> end_;
};

}  // namespace bfio::client

#endif  // BFIO_TOOLS_CLIENT_TOKEN_STREAM_H_
