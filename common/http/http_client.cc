#include "common/http/http_client.h"

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

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"

namespace bfio {
namespace {

absl::Status Malformed() {
  return absl::FailedPreconditionError("the answer is not HTTP");
}
absl::Status TooLarge(absl::string_view what, size_t most) {
  return absl::FailedPreconditionError(absl::StrCat(what, " more than ", most, " bytes"));
}
absl::Status Incomplete() {
  return absl::DataLossError("the answer is incomplete");
}

constexpr absl::string_view kHeaders = "\r\nConnection: close\r\nAccept-Encoding: identity\r\n";

// The answer while it comes.
class Reader {
 public:
  // Whether it is complete; `end`: nothing more comes. `others`: bytes of the other answers that are coming.
  absl::StatusOr<bool> Take(absl::string_view bytes, bool end, size_t others) {
    if (text_.size() + bytes.size() > HttpClient::kMostAnswerBytes)
      return TooLarge("the answer has", HttpClient::kMostAnswerBytes);
    if (text_.size() + bytes.size() + others > HttpClient::kMostComingBytes)
      return TooLarge("the server's unfinished answers have", HttpClient::kMostComingBytes);
    absl::StrAppend(&text_, bytes);
    if (body_at_ == 0) {
      const size_t head = text_.find("\r\n\r\n", std::max<size_t>(at_, 3) - 3);
      at_ = text_.size();
      if (head == std::string::npos && end && text_.empty()) return Incomplete();
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
    if (end && !complete) return Incomplete();
    return complete;
  }
  size_t bytes() const { return text_.size(); }
  HttpClient::Answer Answer() && {
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
      if (!absl::SimpleHexAtoi(digits.substr(0, digits.find(';')), &size) ||
          size > HttpClient::kMostAnswerBytes)
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

// A call and its connection.
class HttpClient::Call {
 public:
  Call(std::string request, absl::Time deadline, Done done)
      : deadline(deadline), done(std::move(done)), request_(std::move(request)) {}
  ~Call() {
    if (fd_ >= 0) close(fd_);
  }

  const absl::Time deadline;
  Done done;

  absl::Status Connect(const Address& server) {
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    if (getaddrinfo(server.host.c_str(), std::to_string(server.port).c_str(), &hints, &found) != 0)
      return absl::UnavailableError(absl::StrCat(server.host, " is no IP address"));
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> to(found, &freeaddrinfo);
    fd_ = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd_ < 0 || (connect(fd_, to->ai_addr, to->ai_addrlen) != 0 && errno != EINPROGRESS))
      return absl::UnavailableError("cannot connect");
    return absl::OkStatus();
  }
  // Some servers answer before they have read the whole request.
  pollfd Awaited() const {
    return {fd_, static_cast<int16_t>(sent_ < request_.size() ? POLLIN | POLLOUT : POLLIN), 0};
  }
  // Of the answer so far.
  size_t bytes() const { return reader_.bytes(); }
  // What was awaited has come. Nothing: there is more to come. `others`: as in Reader::Take.
  std::optional<absl::StatusOr<Answer>> OnReady(size_t others) {
    if (sent_ < request_.size()) {
      const ssize_t size = send(fd_, request_.data() + sent_, request_.size() - sent_, MSG_NOSIGNAL);
      if (size < 0 && errno != EAGAIN && errno != EINTR)
        return absl::UnavailableError(sent_ == 0 ? "cannot connect" : "the connection is broken");
      sent_ += static_cast<size_t>(std::max<ssize_t>(0, size));
    }
    std::array<char, size_t{64} << 10> bytes;
    const ssize_t size = recv(fd_, bytes.data(), bytes.size(), 0);
    if (size < 0 && errno != EAGAIN && errno != EINTR)
      return absl::UnavailableError("the connection is broken");
    if (size < 0) return std::nullopt;
    const absl::StatusOr<bool> complete =
        reader_.Take({bytes.data(), static_cast<size_t>(size)}, size == 0, others);
    if (!complete.ok()) return complete.status();
    if (!*complete) return std::nullopt;
    return std::move(reader_).Answer();
  }

 private:
  const std::string request_;
  size_t sent_ = 0;
  int fd_ = -1;
  Reader reader_;
};

HttpClient::HttpClient(Address server)
    : server_(std::move(server)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), thread_([this] { Run(); }) {}

HttpClient::~HttpClient() {
  if (thread_.joinable()) Stop();
  close(wake_);
}

void HttpClient::Stop() {
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
  }
  Wake();
  thread_.join();
}

uint64_t HttpClient::Get(absl::string_view path, absl::Time deadline, Done done) {
  return Start(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: ", server_.ToString(), kHeaders, "\r\n"),
               deadline, std::move(done));
}

uint64_t HttpClient::Post(absl::string_view path, absl::string_view headers, absl::string_view body,
                          absl::Time deadline, Done done) {
  return Start(absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: ", server_.ToString(), kHeaders, headers,
                            "Content-Length: ", body.size(), "\r\n\r\n", body),
               deadline, std::move(done));
}

uint64_t HttpClient::Start(std::string request, absl::Time deadline, Done done) {
  auto call = std::make_unique<Call>(std::move(request), deadline, std::move(done));
  uint64_t number = 0;
  {
    MutexLock lock(&mutex_);
    number = ++last_;
    started_.emplace(number, std::move(call));
  }
  Wake();
  return number;
}

void HttpClient::Cancel(uint64_t call) {
  {
    MutexLock lock(&mutex_);
    cancelled_.push_back(call);
  }
  Wake();
}

void HttpClient::Wake() const {
  const uint64_t one = 1;
  (void)!write(wake_, &one, sizeof(one));
}

void HttpClient::Run() {
  std::map<uint64_t, std::unique_ptr<Call>> calls;
  std::vector<pollfd> polled;
  for (bool stopped = false;;) {
    std::map<uint64_t, std::unique_ptr<Call>> added;
    std::vector<uint64_t> cancelled;
    {
      MutexLock lock(&mutex_);
      added.swap(started_);
      cancelled.swap(cancelled_);
      stopped = stopped_;
    }
    if (stopped && calls.empty() && added.empty()) return;
    for (auto& [number, call] : added) {
      if (absl::Status status = call->Connect(server_); !status.ok()) {
        std::move(call->done)(status);
      } else {
        calls.emplace(number, std::move(call));
      }
    }
    for (const uint64_t number : cancelled) calls.erase(number);
    polled.assign(1, {wake_, POLLIN, 0});
    absl::Time next = MonotonicNow() + absl::Minutes(1);
    size_t coming = 0;
    for (const auto& [number, call] : calls) {
      coming += call->bytes();
      polled.push_back(call->Awaited());
      next = std::min(next, call->deadline);
    }
    const int64_t ms = std::clamp<int64_t>(absl::ToInt64Milliseconds(next - MonotonicNow()) + 1, 0, 60'000);
    if (poll(polled.data(), polled.size(), stopped ? 0 : static_cast<int>(ms)) < 0) continue;
    uint64_t woken = 0;
    if (polled[0].revents != 0) (void)!read(wake_, &woken, sizeof(woken));
    const absl::Time now = MonotonicNow();
    auto ready = polled.begin();
    std::erase_if(calls, [&](auto& entry) {
      Call& call = *entry.second;
      std::optional<absl::StatusOr<Answer>> answer;
      coming -= call.bytes();
      if ((++ready)->revents != 0) answer = call.OnReady(coming);
      if (!answer && now >= call.deadline) answer = absl::DeadlineExceededError("no answer");
      if (!answer && stopped) answer = absl::CancelledError("stopped");
      if (!answer) coming += call.bytes();
      if (answer) std::move(call.done)(*std::move(answer));
      return answer.has_value();
    });
  }
}

}  // namespace bfio
