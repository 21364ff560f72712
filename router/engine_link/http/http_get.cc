#include "router/engine_link/http/http_get.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"

namespace bfio::router {
namespace {

absl::Status Malformed() {
  return absl::FailedPreconditionError("the answer is not HTTP");
}

// Waits until the socket can be read or written. CANCELLED once `stop` can be read.
absl::Status Await(int socket, int16_t events, int stop, absl::Time deadline) {
  for (;;) {
    const absl::Duration left = deadline - MonotonicNow();
    if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("no answer");
    std::array<pollfd, 2> polled = {{{socket, events, 0}, {stop, POLLIN, 0}}};
    const int64_t ms = std::clamp<int64_t>(absl::ToInt64Milliseconds(left) + 1, 1, 60'000);
    if (poll(polled.data(), polled.size(), static_cast<int>(ms)) <= 0) continue;
    if (polled[1].revents != 0) return absl::CancelledError("stopped");
    return absl::OkStatus();
  }
}

// The answer while it comes.
class Reader {
 public:
  // Whether it is complete; `end`: nothing more comes.
  absl::StatusOr<bool> Take(absl::string_view bytes, bool end) {
    if (text_.size() + bytes.size() > HttpGet::kMostAnswerBytes)
      return absl::FailedPreconditionError(
          absl::StrCat("the answer has more than ", HttpGet::kMostAnswerBytes, " bytes"));
    absl::StrAppend(&text_, bytes);
    if (body_at_ == 0) {
      const size_t head = text_.find("\r\n\r\n", std::max<size_t>(at_, 3) - 3);
      at_ = text_.size();
      if (head == std::string::npos) return end ? Malformed() : absl::StatusOr<bool>(false);
      at_ = body_at_ = head + 4;
      BFIO_RETURN_IF_ERROR(ReadHead(absl::string_view(text_).substr(0, head)));
    }
    bool complete = false;
    if (chunked_) {
      BFIO_ASSIGN_OR_RETURN(complete, TakeChunks());
    } else if (length_) {
      complete = text_.size() - body_at_ >= *length_;
    } else {
      complete = end;
    }
    if (end && !complete) return absl::FailedPreconditionError("the answer is incomplete");
    return complete;
  }
  HttpGet::Answer Answer() && {
    if (!chunked_) chunks_ = text_.substr(body_at_, length_.value_or(std::string::npos));
    return {status_, std::move(chunks_)};
  }

 private:
  absl::Status ReadHead(absl::string_view head) {
    // "HTTP/1.1 200 OK"
    if (head.size() < 12 || !absl::StartsWith(head, "HTTP/1.") ||
        !absl::SimpleAtoi(head.substr(8, 4), &status_)) {
      return Malformed();
    }
    for (const absl::string_view line : absl::StrSplit(head, "\r\n")) {
      const std::pair<absl::string_view, absl::string_view> header =
          absl::StrSplit(line, absl::MaxSplits(':', 1));
      uint64_t length = 0;
      if (absl::EqualsIgnoreCase(header.first, "content-length")) {
        if (!absl::SimpleAtoi(header.second, &length)) return Malformed();
        length_ = length;
      } else if (absl::EqualsIgnoreCase(header.first, "transfer-encoding")) {
        chunked_ = absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(header.second), "chunked");
      }
    }
    return absl::OkStatus();
  }
  // Moves the complete chunks from at_ on; whether the last has come.
  absl::StatusOr<bool> TakeChunks() {
    for (;;) {
      const size_t line = text_.find("\r\n", at_);
      if (line == std::string::npos && text_.size() - at_ > kMostLine) return Malformed();
      if (line == std::string::npos) return false;
      uint64_t size = 0;
      const absl::string_view digits = absl::string_view(text_).substr(at_, line - at_);
      if (!absl::SimpleHexAtoi(digits.substr(0, digits.find(';')), &size) || size > HttpGet::kMostAnswerBytes)
        return Malformed();
      if (size == 0) return true;
      const size_t from = line + 2;
      if (text_.size() < from + size + 2) return false;
      chunks_.append(text_, from, size);
      at_ = from + size + 2;
    }
  }

  // Of a chunk's size with its extensions.
  static constexpr size_t kMostLine = 4096;

  std::string text_, chunks_;
  // Where the body begins, 0: its headers are coming; up to where the text has been read.
  size_t body_at_ = 0, at_ = 0;
  int status_ = 0;
  std::optional<uint64_t> length_;
  bool chunked_ = false;
};

}  // namespace

HttpGet::HttpGet(Address server)
    : server_(std::move(server)), stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

HttpGet::~HttpGet() {
  close(stop_);
}

void HttpGet::Stop() {
  const uint64_t one = 1;
  (void)!write(stop_, &one, sizeof(one));
}

absl::StatusOr<HttpGet::Answer> HttpGet::operator()(absl::string_view path, absl::Time deadline) const {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(server_.host.c_str(), std::to_string(server_.port).c_str(), &hints, &found) != 0)
    return absl::UnavailableError(absl::StrCat(server_.host, " is no IP address"));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> to(found, &freeaddrinfo);
  const int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const auto close_it = absl::MakeCleanup([fd] { close(fd); });
  if (fd < 0 || (connect(fd, to->ai_addr, to->ai_addrlen) != 0 && errno != EINPROGRESS))
    return absl::UnavailableError("cannot connect");
  BFIO_RETURN_IF_ERROR(Await(fd, POLLOUT, stop_, deadline));
  const std::string request = absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: ", server_.ToString(),
                                           "\r\nConnection: close\r\nAccept-Encoding: identity\r\n\r\n");
  // Fits into the empty buffer of a new connection.
  if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) != std::ssize(request))
    return absl::UnavailableError("cannot connect");
  Reader reader;
  std::array<char, size_t{64} << 10> bytes;
  for (;;) {
    BFIO_RETURN_IF_ERROR(Await(fd, POLLIN, stop_, deadline));
    const ssize_t size = recv(fd, bytes.data(), bytes.size(), 0);
    if (size < 0 && errno != EAGAIN && errno != EINTR)
      return absl::UnavailableError("the connection is broken");
    if (size < 0) continue;
    BFIO_ASSIGN_OR_RETURN(const bool complete,
                          reader.Take({bytes.data(), static_cast<size_t>(size)}, size == 0));
    if (complete) return std::move(reader).Answer();
  }
}

}  // namespace bfio::router
