// Calls over HTTP/1.1 to a server that is not trusted: an answer has a bound in time and in bytes from its
// first byte to its last, headers, chunks and the TLS handshake included. Redirects are not followed, no
// proxy is used, and nothing is decompressed. Calls run side by side, with a connection each. Ownership: owns
// a thread. Threads: any, but not its own for Stop; `done` is called on its thread and must not block.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/address.h"
#include "common/base/mutex.h"
#include "common/base/waker.h"

namespace bfio {

class HttpClient {
 public:
  // Far above the answers of any engine: metrics have some 100 KB.
  static constexpr size_t kMostAnswerBytes = size_t{4} << 20;
  // Of the answers that are coming. Each of them is kept twice while its chunks come.
  static constexpr size_t kMostComingBytes = size_t{16} << 20;

  struct Answer {
    int status = 0;
    std::string body;
  };
  // DEADLINE_EXCEEDED; UNAVAILABLE: no connection, or it broke; DATA_LOSS: the answer is incomplete;
  // FAILED_PRECONDITION: it is not HTTP, or too large; CANCELLED: the client has ended.
  using Done = absl::AnyInvocable<void(absl::StatusOr<Answer>) &&>;

  // How the server is called; both are asked at each call.
  struct Login {
    // For the connection, on the client's thread; none: plain text. Null: its files cannot be used.
    std::function<std::shared_ptr<SSL_CTX>()> tls;
    // Of which the server's certificate must be: a DNS name or an IP address.
    std::string name;
    // The bearer token, on the caller's thread, which is never logged; none: the call has none.
    std::function<std::string()> token;
  };

  // What has begun to answer may take so long for the rest, whatever the deadline; not with Follow.
  static constexpr absl::Duration kLongestAnswer = absl::Seconds(10);

  // `server` is an IP address.
  explicit HttpClient(Address server, Login login = {}, absl::Duration longest_answer = kLongestAnswer);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Returns the call's number. `headers`: lines that end with CR LF, beyond those of any call. `deadline` is
  // a time of MonotonicNow.
  uint64_t Get(absl::string_view path, absl::Time deadline, Done done);
  // For answers without an end, in chunks: `on_part` is called, as `done`, with each part of one with status
  // 200. Then only what is kept here counts as the answer.
  uint64_t Follow(absl::string_view path, absl::Time deadline,
                  std::function<void(absl::string_view part)> on_part, Done done);
  uint64_t Post(absl::string_view path, absl::string_view headers, absl::string_view body,
                absl::Time deadline, Done done);
  // Closes the call's connection; `done` is not called, unless that has begun.
  void Cancel(uint64_t call);
  // Ends all calls, and the thread. Once; nothing may be started after it.
  void Stop();

 private:
  class Call;

  std::string Head(absl::string_view method, absl::string_view path) const;
  uint64_t Start(std::string request, absl::Time deadline, Done done,
                 std::function<void(absl::string_view part)> on_part = nullptr);
  void Run();

  const Address server_;
  const Login login_;
  const absl::Duration longest_answer_;
  // Readable when something has been added below.
  const Waker wake_;
  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::unique_ptr<Call>> started_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> cancelled_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace bfio
