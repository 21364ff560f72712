#include "tests/testing/unfinished_calls.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/testing/sockets.h"

namespace bfio::testing {
namespace {

// Frame types and flags of RFC 9113.
constexpr uint8_t kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6, kGoAway = 7, kWindow = 8,
                  kContinuation = 9;
constexpr uint8_t kAck = 1, kEndStream = 1, kEndHeaders = 4;
constexpr uint16_t kInitialWindow = 4;
constexpr size_t kFrameHeader = 9, kDataBytes = 16384;
// Maximum number of bytes that are prepared before they are written.
constexpr size_t kOutBytes = 1 << 20;

void AppendNumber(uint32_t number, int bytes, std::string& out) {
  for (int i = bytes - 1; i >= 0; --i) out.push_back(static_cast<char>(number >> (8 * i)));
}

uint32_t Number(absl::string_view bytes) {
  uint32_t number = 0;
  for (const char c : bytes) number = number << 8 | static_cast<uint8_t>(c);
  return number;
}

// A literal header field, never indexed (RFC 7541, 6.2.2); name and value are shorter than 127 bytes.
void AppendField(absl::string_view name, absl::string_view value, std::string& out) {
  out.push_back(0);
  for (const absl::string_view text : {name, value}) {
    out.push_back(static_cast<char>(text.size()));
    out.append(text.data(), text.size());
  }
}

}  // namespace

UnfinishedCalls::UnfinishedCalls(const std::string& address, std::string token, std::string tenant)
    : token_(std::move(token)), tenant_(std::move(tenant)), fd_(ConnectTo(address)) {
  if (fd_ >= 0) fcntl(fd_, F_SETFL, O_NONBLOCK);
  out_ = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  AddFrame(kSettings, 0, 0, "");
}

UnfinishedCalls::~UnfinishedCalls() {
  if (fd_ >= 0) close(fd_);
}

bool UnfinishedCalls::Send(const std::string& method, int calls, uint32_t message_bytes,
                           absl::Duration patience, const std::string& first) {
  if (fd_ < 0) return false;
  for (int i = 0; i < calls; ++i) {
    const auto stream = static_cast<uint32_t>(2 * i + 1);
    AddHeaders(stream, method);
    if (message_bytes == 0) {
      calls_.push_back({initial_window_, 0, true});
      continue;
    }
    // gRPC's prefix of a message: not compressed, its length.
    std::string begin;
    if (!first.empty()) {
      begin.push_back('\0');
      AppendNumber(static_cast<uint32_t>(first.size()), 4, begin);
      begin += first;
    }
    begin.push_back('\0');
    AppendNumber(message_bytes, 4, begin);
    AddFrame(kData, 0, stream, begin);
    window_ -= std::ssize(begin);
    calls_.push_back({initial_window_ - std::ssize(begin), message_bytes - 1, true});
  }
  do {
    AddData();
  } while (!Done() && Exchange(patience));
  return true;
}

bool UnfinishedCalls::SendHeaders(uint64_t bytes, absl::Duration patience, bool indexed) {
  if (fd_ < 0) return false;
  // A literal field whose name has a length of some 16 MiB times 256 (RFC 7541, 5.1); or fields of the static
  // table (6.1): ":method: POST", and then "accept-charset" without a value. The frames are small, because
  // gRPC counts the headers of a frame.
  AddFrame(kHeaders, 0, 1, indexed ? std::string("\x83") : std::string("\0\x7f\xff\xff\xff\x0f", 6));
  const std::string some = indexed ? std::string(200, '\x8f') : std::string(kDataBytes, 'x');
  for (uint64_t sent = 0; sent < bytes; sent += some.size()) {
    AddFrame(kContinuation, 0, 1, some);
    while (out_.size() >= kOutBytes) {
      if (!Exchange(patience)) return true;
    }
  }
  while (!out_.empty() && Exchange(patience)) {
  }
  return true;
}

bool UnfinishedCalls::SendResets(const std::string& method, int calls, absl::Duration patience) {
  if (fd_ < 0) return false;
  for (int i = 0; i < calls; ++i) {
    const auto stream = static_cast<uint32_t>(2 * i + 1);
    AddHeaders(stream, method);
    AddFrame(kReset, 0, stream, std::string("\0\0\0\x8", 4));
    while (out_.size() >= kDataBytes) {
      if (!Exchange(patience)) return true;
    }
  }
  while (!out_.empty() && Exchange(patience)) {
  }
  return true;
}

bool UnfinishedCalls::Done() const {
  return out_.empty() && std::all_of(calls_.begin(), calls_.end(),
                                     [](const Call& call) { return !call.open || call.left == 0; });
}

void UnfinishedCalls::AddFrame(uint8_t type, uint8_t flags, uint32_t stream, absl::string_view payload) {
  AppendNumber(static_cast<uint32_t>(payload.size()), 3, out_);
  out_.push_back(static_cast<char>(type));
  out_.push_back(static_cast<char>(flags));
  AppendNumber(stream, 4, out_);
  out_.append(payload.data(), payload.size());
}

void UnfinishedCalls::AddHeaders(uint32_t stream, const std::string& method) {
  std::string fields;
  AppendField(":method", "POST", fields);
  AppendField(":scheme", "http", fields);
  AppendField(":path", method, fields);
  AppendField(":authority", "router", fields);
  AppendField("content-type", "application/grpc", fields);
  AppendField("te", "trailers", fields);
  if (!token_.empty()) AppendField("authorization", absl::StrCat("Bearer ", token_), fields);
  if (!tenant_.empty()) AppendField("bfio-tenant", tenant_, fields);
  AddFrame(kHeaders, kEndHeaders, stream, fields);
}

void UnfinishedCalls::AddData() {
  for (size_t i = 0; i < calls_.size() && out_.size() < kOutBytes; ++i) {
    Call& call = calls_[i];
    while (call.open && call.left > 0 && call.window > 0 && window_ > 0 && out_.size() < kOutBytes) {
      const int64_t bytes = std::min({int64_t{kDataBytes}, int64_t{call.left}, call.window, window_});
      AddFrame(kData, 0, static_cast<uint32_t>(2 * i + 1), std::string(static_cast<size_t>(bytes), 'x'));
      call.left -= static_cast<uint32_t>(bytes);
      call.window -= bytes;
      window_ -= bytes;
      sent_bytes_ += static_cast<uint64_t>(bytes);
    }
  }
}

bool UnfinishedCalls::Exchange(absl::Duration patience) {
  pollfd one = {fd_, static_cast<int16_t>(POLLIN | (out_.empty() ? 0 : POLLOUT)), 0};
  if (poll(&one, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) <= 0) return false;
  if ((one.revents & POLLOUT) != 0) {
    const ssize_t sent = send(fd_, out_.data(), out_.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return End();
    if (sent > 0) out_.erase(0, static_cast<size_t>(sent));
  }
  if ((one.revents & (POLLIN | POLLHUP | POLLERR)) == 0) return true;
  char buffer[65536];
  const ssize_t got = recv(fd_, buffer, sizeof(buffer), 0);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return End();
  if (got > 0) in_.append(buffer, static_cast<size_t>(got));
  TakeFrames();
  return !ended_;
}

void UnfinishedCalls::TakeFrames() {
  const absl::string_view all = in_;
  size_t at = 0;
  while (all.size() - at >= kFrameHeader) {
    const size_t length = Number(all.substr(at, 3));
    if (all.size() - at < kFrameHeader + length) break;
    TakeFrame(static_cast<uint8_t>(all[at + 3]), static_cast<uint8_t>(all[at + 4]),
              Number(all.substr(at + 5, 4)) & 0x7fffffff, all.substr(at + kFrameHeader, length));
    at += kFrameHeader + length;
  }
  in_.erase(0, at);
}

void UnfinishedCalls::TakeFrame(uint8_t type, uint8_t flags, uint32_t stream, absl::string_view payload) {
  Call* const call = Find(stream);
  if (type == kSettings && (flags & kAck) == 0) {
    TakeSettings(payload);
    AddFrame(kSettings, kAck, 0, "");
  } else if (type == kPing && (flags & kAck) == 0) {
    AddFrame(kPing, kAck, 0, payload);
  } else if (type == kWindow && payload.size() == 4) {
    if (stream == 0) window_ += Number(payload);
    if (call != nullptr) call->window += Number(payload);
  } else if (type == kReset || (type == kHeaders && (flags & kEndStream) != 0)) {
    if (call != nullptr && call->open) {
      call->open = false;
      ++refused_;
    }
  } else if (type == kGoAway) {
    ended_ = true;
  }
}

void UnfinishedCalls::TakeSettings(absl::string_view payload) {
  for (; payload.size() >= 6; payload.remove_prefix(6)) {
    if (Number(payload.substr(0, 2)) != kInitialWindow) continue;
    const int64_t window = Number(payload.substr(2, 4));
    for (Call& call : calls_) call.window += window - initial_window_;
    initial_window_ = window;
  }
}

UnfinishedCalls::Call* UnfinishedCalls::Find(uint32_t stream) {
  const size_t index = stream / 2;
  return stream % 2 == 1 && index < calls_.size() ? &calls_[index] : nullptr;
}

}  // namespace bfio::testing
