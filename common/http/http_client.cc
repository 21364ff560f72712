#include "common/http/http_client.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/resolve.h"
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
  // Takes the chunks that have come of an answer with status 200.
  std::string TakeParts() {
    if (!chunked_ || status_ != 200) return "";
    text_.erase(body_at_, std::exchange(at_, body_at_) - body_at_);
    return std::exchange(chunks_, {});
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
  Call(std::string request, absl::Time deadline, Done done,
       std::function<void(absl::string_view part)> on_part)
      : deadline(deadline),
        done(std::move(done)),
        request_(std::move(request)),
        on_part_(std::move(on_part)) {}
  ~Call() {
    if (fd_ >= 0) close(fd_);
  }

  absl::Time deadline;
  Done done;

  absl::Status Connect(const Address& server, const Login& login) {
    const absl::StatusOr<AddressList> found = Resolve(server.host, server.port, AI_NUMERICHOST);
    if (!found.ok()) return absl::UnavailableError(absl::StrCat(server.host, " is no IP address"));
    const AddressList& to = *found;
    fd_ = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd_ < 0) return absl::ResourceExhaustedError("no file descriptor is free");
    if (connect(fd_, to->ai_addr, to->ai_addrlen) != 0 && errno != EINPROGRESS)
      return absl::UnavailableError("cannot connect");
    return login.tls ? Encrypt(login) : absl::OkStatus();
  }
  // Some servers answer before they have read the whole request.
  pollfd Awaited() const {
    if (ssl_ != nullptr && SSL_is_init_finished(ssl_.get()) == 0)
      return {fd_, static_cast<int16_t>(SSL_want_read(ssl_.get()) ? POLLIN : POLLOUT), 0};
    return {fd_, static_cast<int16_t>(sent_ < request_.size() ? POLLIN | POLLOUT : POLLIN), 0};
  }
  // Of the answer so far.
  size_t bytes() const { return reader_.bytes(); }
  // What was awaited has come. Nothing: there is more to come, within `longest`. `others`: as in
  // Reader::Take.
  std::optional<absl::StatusOr<Answer>> OnReady(size_t others, absl::Duration longest) {
    // A server that refuses the request says why before it closes.
    std::optional<absl::Status> unsent;
    if (sent_ < request_.size()) {
      const ssize_t size = Send(absl::string_view(request_).substr(sent_));
      if (size < 0 && errno != EAGAIN && errno != EINTR) unsent = Broken();
      sent_ += static_cast<size_t>(std::max<ssize_t>(0, size));
    }
    std::array<char, size_t{64} << 10> bytes;
    const ssize_t size = Receive(bytes.data(), bytes.size());
    const bool waits = size < 0 && (errno == EAGAIN || errno == EINTR);
    if (size <= 0 && unsent && ERR_peek_error() == 0) return *unsent;
    if (waits) return std::nullopt;
    if (size < 0) return Broken();
    if (reader_.bytes() == 0 && !on_part_) deadline = std::min(deadline, MonotonicNow() + longest);
    const absl::StatusOr<bool> complete =
        reader_.Take({bytes.data(), static_cast<size_t>(size)}, size == 0, others);
    if (!complete.ok()) return complete.status();
    if (on_part_) on_part_(reader_.TakeParts());
    if (!*complete) return std::nullopt;
    return std::move(reader_).Answer();
  }

 private:
  absl::Status Encrypt(const Login& login) {
    const std::shared_ptr<SSL_CTX> context = login.tls();
    if (context != nullptr) ssl_.reset(SSL_new(context.get()));
    if (ssl_ == nullptr) return absl::UnavailableError("the files for TLS cannot be used");
    SSL* const ssl = ssl_.get();
    SSL_set_mode(ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_set_connect_state(ssl);
    const bool named = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), login.name.c_str()) == 1 ||
                       (SSL_set1_host(ssl, login.name.c_str()) == 1 &&
                        SSL_set_tlsext_host_name(ssl, login.name.c_str()) == 1);
    if (named && SSL_set_fd(ssl, fd_) == 1) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("no certificate can be of '", login.name, "'"));
  }
  // As send and recv.
  ssize_t Send(absl::string_view bytes) {
    if (ssl_ == nullptr) return send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ERR_clear_error();
    return Came(
        SSL_write(ssl_.get(), bytes.data(), static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX))));
  }
  ssize_t Receive(char* to, size_t size) {
    if (ssl_ == nullptr) return recv(fd_, to, size, 0);
    ERR_clear_error();
    return Came(SSL_read(ssl_.get(), to, static_cast<int>(size)));
  }
  ssize_t Came(int done) {
    if (done > 0) return done;
    const int error = SSL_get_error(ssl_.get(), done);
    if (error == SSL_ERROR_ZERO_RETURN) return 0;
    errno = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? EAGAIN : EPROTO;
    return -1;
  }
  absl::Status Broken() const {
    const unsigned long error = ssl_ == nullptr ? 0 : ERR_get_error();
    const char* why = ERR_reason_error_string(error);
    if (const long refused = ssl_ == nullptr ? X509_V_OK : SSL_get_verify_result(ssl_.get());
        refused != X509_V_OK)
      return absl::UnavailableError(
          absl::StrCat("TLS: certificate verify failed: ", X509_verify_cert_error_string(refused)));
    if (error != 0) return absl::UnavailableError(absl::StrCat("TLS: ", why != nullptr ? why : "an error"));
    return absl::UnavailableError(sent_ == 0 ? "cannot connect" : "the connection is broken");
  }

  const std::string request_;
  const std::function<void(absl::string_view part)> on_part_;
  size_t sent_ = 0;
  int fd_ = -1;
  // Null: plain text.
  std::unique_ptr<SSL, decltype([](SSL* ssl) { SSL_free(ssl); })> ssl_;
  Reader reader_;
};

HttpClient::HttpClient(Address server, Login login, absl::Duration longest_answer)
    : server_(std::move(server)),
      login_(std::move(login)),
      longest_answer_(longest_answer),
      thread_([this] { Run(); }) {}

HttpClient::~HttpClient() {
  if (thread_.joinable()) Stop();
}

void HttpClient::Stop() {
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
  }
  wake_.Wake();
  thread_.join();
}

uint64_t HttpClient::Get(absl::string_view path, absl::Time deadline, Done done) {
  return Start(absl::StrCat(Head("GET", path), "\r\n"), deadline, std::move(done));
}

uint64_t HttpClient::Follow(absl::string_view path, absl::Time deadline,
                            std::function<void(absl::string_view part)> on_part, Done done) {
  return Start(absl::StrCat(Head("GET", path), "\r\n"), deadline, std::move(done), std::move(on_part));
}

uint64_t HttpClient::Post(absl::string_view path, absl::string_view headers, absl::string_view body,
                          absl::Time deadline, Done done) {
  return Start(absl::StrCat(Head("POST", path), headers, "Content-Length: ", body.size(), "\r\n\r\n", body),
               deadline, std::move(done));
}

std::string HttpClient::Head(absl::string_view method, absl::string_view path) const {
  std::string head = absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: ", server_.ToString(), kHeaders);
  const std::string token = login_.token ? login_.token() : "";
  if (!token.empty()) absl::StrAppend(&head, "Authorization: Bearer ", token, "\r\n");
  return head;
}

uint64_t HttpClient::Start(std::string request, absl::Time deadline, Done done,
                           std::function<void(absl::string_view part)> on_part) {
  auto call = std::make_unique<Call>(std::move(request), deadline, std::move(done), std::move(on_part));
  uint64_t number = 0;
  {
    MutexLock lock(&mutex_);
    number = ++last_;
    started_.emplace(number, std::move(call));
  }
  wake_.Wake();
  return number;
}

void HttpClient::Cancel(uint64_t call) {
  {
    MutexLock lock(&mutex_);
    cancelled_.push_back(call);
  }
  wake_.Wake();
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
      if (absl::Status status = call->Connect(server_, login_); !status.ok()) {
        std::move(call->done)(status);
      } else {
        calls.emplace(number, std::move(call));
      }
    }
    for (const uint64_t number : cancelled) calls.erase(number);
    polled.assign(1, {wake_.fd(), POLLIN, 0});
    absl::Time next = MonotonicNow() + absl::Minutes(1);
    size_t coming = 0;
    for (const auto& [number, call] : calls) {
      coming += call->bytes();
      polled.push_back(call->Awaited());
      next = std::min(next, call->deadline);
    }
    const int64_t most = wake_.fd() < 0 ? 10 : 60'000;
    const int64_t ms = std::clamp<int64_t>(absl::ToInt64Milliseconds(next - MonotonicNow()) + 1, 0, most);
    if (poll(polled.data(), polled.size(), stopped ? 0 : static_cast<int>(ms)) < 0) continue;
    if (polled[0].revents != 0) wake_.Clear();
    const absl::Time now = MonotonicNow();
    auto ready = polled.begin();
    std::erase_if(calls, [&](auto& entry) {
      Call& call = *entry.second;
      std::optional<absl::StatusOr<Answer>> answer;
      coming -= call.bytes();
      if ((++ready)->revents != 0) answer = call.OnReady(coming, longest_answer_);
      if (!answer && now >= call.deadline) answer = absl::DeadlineExceededError("no answer");
      if (!answer && stopped) answer = absl::CancelledError("stopped");
      if (!answer) coming += call.bytes();
      if (answer) std::move(call.done)(*std::move(answer));
      return answer.has_value();
    });
  }
}

}  // namespace bfio
