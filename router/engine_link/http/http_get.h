// GET over HTTP/1.1 from a server that is not trusted: an answer has a bound in time and in bytes from its
// first byte to its last, headers and chunks included. Redirects are not followed, no proxy is used, and
// nothing is decompressed. A connection per request. Threads: one; Stop from any.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/address.h"

namespace bfio::router {

class HttpGet {
 public:
  // Far above the answers of any engine: metrics have some 100 KB.
  static constexpr size_t kMostAnswerBytes = size_t{4} << 20;

  struct Answer {
    int status = 0;
    std::string body;
  };

  // `server` is an IP address.
  explicit HttpGet(Address server);
  ~HttpGet();
  HttpGet(const HttpGet&) = delete;
  HttpGet& operator=(const HttpGet&) = delete;

  // `deadline` is a time of MonotonicNow. DEADLINE_EXCEEDED; UNAVAILABLE: no connection; FAILED_PRECONDITION:
  // the answer is not HTTP, incomplete, or too large; CANCELLED: stopped.
  absl::StatusOr<Answer> operator()(absl::string_view path, absl::Time deadline) const;
  // Ends the request under way at once, and all later ones.
  void Stop();

 private:
  const Address server_;
  // Readable once stopped.
  const int stop_;
};

}  // namespace bfio::router
