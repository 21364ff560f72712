#include "router/engine_link/http/rank_messages.h"

#include <endian.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/resolve.h"
#include "common/base/spdlog.h"

namespace bfio::router {
namespace {

uint64_t NumberAt(const char* bytes) {
  uint64_t number = 0;
  std::memcpy(&number, bytes, sizeof(number));
  return be64toh(number);
}

}  // namespace

absl::string_view ZmtpReader::Hello() {
  static const std::string& hello = *[] {
    auto* const text = new std::string(kGreetingBytes, '\0');
    (*text)[0] = '\xff', (*text)[9] = '\x7f', (*text)[10] = kVersion;
    text->replace(12, 4, "NULL");
    absl::StrAppend(text, absl::string_view("\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB", 27));
    return text;
  }();
  return hello;
}

absl::Status ZmtpReader::Take(absl::string_view bytes,
                              absl::FunctionRef<void(std::vector<std::string>)> on_message) {
  absl::StrAppend(&text_, bytes);
  absl::string_view rest = text_;
  if (!greeted_) {
    if (rest.size() < kGreetingBytes) return absl::OkStatus();
    if (rest[0] != '\xff' || rest[9] != '\x7f' || rest[10] < kVersion)
      return absl::InvalidArgumentError("it is not ZeroMQ's protocol, version 3");
    rest.remove_prefix(kGreetingBytes);
    greeted_ = true;
  }
  for (;;) {
    constexpr char kMore = 1, kLong = 2, kCommand = 4;
    const char flags = rest.empty() ? '\0' : rest[0];
    const size_t head = (flags & kLong) != 0 ? 9 : 2;
    if (rest.size() < head) break;
    const uint64_t size = head == 2 ? static_cast<uint8_t>(rest[1]) : NumberAt(rest.data() + 1);
    if (size > kMostBytes - bytes_ || parts_.size() >= kMostParts)
      return absl::OutOfRangeError(
          absl::StrCat("it has more than ", kMostBytes, " bytes, or ", kMostParts, " parts"));
    if (rest.size() - head < size) break;
    const absl::string_view part = rest.substr(head, size);
    rest.remove_prefix(head + size);
    if ((flags & kCommand) != 0) {
      ready_ = true;
      continue;
    }
    bytes_ += size;
    parts_.emplace_back(part);
    if ((flags & kMore) != 0) continue;
    bytes_ = 0;
    on_message(std::exchange(parts_, {}));
  }
  text_.erase(0, text_.size() - rest.size());
  return absl::OkStatus();
}

// Of a rank, of one kind. Threads: the one of RankMessages.
class RankMessages::Source {
 public:
  Source(const Kind* kind, int32_t rank) : kind_(kind), rank_(rank) {}
  ~Source() { Close(); }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  // Connects when that is due. Nothing is awaited of a negative descriptor.
  pollfd Awaited(const std::string& host, absl::Time now) {
    if (fd_ < 0 && now >= connect_at_) Connect(host, now);
    return {fd_, static_cast<int16_t>(unsent_.empty() ? POLLIN : POLLIN | POLLOUT), 0};
  }
  bool connected() const { return fd_ >= 0; }
  void OnReady(const std::string& engine) {
    if (!unsent_.empty()) {
      const ssize_t size = send(fd_, unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
      if (size < 0 && errno != EAGAIN && errno != EINTR) return Close();
      unsent_.erase(0, static_cast<size_t>(std::max<ssize_t>(0, size)));
    }
    std::array<char, size_t{64} << 10> bytes;
    const ssize_t size = recv(fd_, bytes.data(), bytes.size(), 0);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (size <= 0) return Close();
    const absl::Status read =
        reader_.Take({bytes.data(), static_cast<size_t>(size)}, [&](const std::vector<std::string>& parts) {
          const bool good = parts.size() == 3 && parts[1].size() == sizeof(uint64_t);
          Tell(engine, kind_->take(rank_, good ? NumberAt(parts[1].data()) : 0, good ? parts[2] : ""));
        });
    if (reader_.ready() && !std::exchange(subscribed_, true))
      absl::StrAppend(&unsent_, ZmtpReader::Subscription());
    if (read.ok()) return;
    Tell(engine, read);
    Close();
  }

 private:
  void Connect(const std::string& host, absl::Time now) {
    connect_at_ = now + kReconnect;
    const auto found = Resolve(host, static_cast<uint16_t>(kind_->port + rank_), AI_NUMERICHOST);
    if (!found.ok()) return;
    const addrinfo& to = **found;
    fd_ = socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd_ >= 0 && connect(fd_, to.ai_addr, to.ai_addrlen) != 0 && errno != EINPROGRESS) Close();
    unsent_ = std::string(ZmtpReader::Hello());
    reader_ = {};
    subscribed_ = false;
  }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  void Tell(const std::string& engine, const absl::Status& taken) {
    if (!taken.ok() && !std::exchange(refused_, true)) {
      spdlog::warn("engine {}: a message of {} of rank {} is refused: {}", engine, kind_->what, rank_,
                   std::string(taken.message()));
    }
    if (taken.ok() && !std::exchange(told_, true))
      spdlog::info("engine {}: rank {} sends {}", engine, rank_, kind_->what);
  }

  const Kind* const kind_;
  const int32_t rank_;
  int fd_ = -1;
  absl::Time connect_at_ = absl::InfinitePast();
  std::string unsent_;
  ZmtpReader reader_;
  bool subscribed_ = false;
  // Its messages have been logged, and one that was refused.
  bool told_ = false, refused_ = false;
};

RankMessages::RankMessages(std::string name, std::string host, std::vector<Kind> kinds)
    : name_(std::move(name)), host_(std::move(host)), kinds_(std::move(kinds)), thread_([this] { Run(); }) {}

RankMessages::~RankMessages() {
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
  }
  wake_.Wake();
  thread_.join();
}

void RankMessages::Follow(int32_t rank) {
  MutexLock lock(&mutex_);
  if (ranks_.size() >= kMostRanks || !ranks_.insert(rank).second) return;
  added_.push_back(rank);
  wake_.Wake();
}

void RankMessages::Run() {
  std::vector<std::unique_ptr<Source>> sources;
  std::vector<pollfd> polled;
  for (;;) {
    {
      MutexLock lock(&mutex_);
      if (stopped_) return;
      for (const int32_t rank : std::exchange(added_, {}))
        for (const Kind& kind : kinds_) sources.push_back(std::make_unique<Source>(&kind, rank));
    }
    polled.assign(1, {wake_.fd(), POLLIN, 0});
    bool all = true;
    for (const auto& source : sources) {
      polled.push_back(source->Awaited(host_, MonotonicNow()));
      all = all && source->connected();
    }
    const bool waits = all && wake_.fd() >= 0;
    if (poll(polled.data(), polled.size(),
             waits ? -1 : static_cast<int>(absl::ToInt64Milliseconds(kReconnect))) < 0)
      continue;
    if (polled.front().revents != 0) wake_.Clear();
    for (size_t i = 0; i < sources.size(); ++i)
      if (polled[i + 1].revents != 0) sources[i]->OnReady(name_);
  }
}

}  // namespace bfio::router
