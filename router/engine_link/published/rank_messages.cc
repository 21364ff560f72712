#include "router/engine_link/published/rank_messages.h"

#include <endian.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
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

std::string ZmtpReader::Hello(absl::string_view type) {
  std::string text(kGreetingBytes, '\0');
  text[0] = '\xff', text[9] = '\x7f', text[10] = kVersion;
  text.replace(12, 4, "NULL");
  const std::string ready = absl::StrCat(absl::string_view("\5READY\xbSocket-Type\0\0\0", 21),
                                         std::string(1, static_cast<char>(type.size())), type);
  return absl::StrCat(text, "\4", std::string(1, static_cast<char>(ready.size())), ready);
}

std::string ZmtpReader::Replay(uint64_t from) {
  const uint64_t big = htobe64(from);
  return absl::StrCat(absl::string_view("\1\0\0\x8", 4),
                      absl::string_view(reinterpret_cast<const char*>(&big), sizeof(big)));
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

// To one port of a rank. Threads: the one of RankMessages.
class RankMessages::Connection {
 public:
  Connection(absl::string_view type, int port) : type_(type), port_(port) {}
  ~Connection() { Close(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool open() const { return fd_ >= 0; }
  // All has been sent.
  bool settled() const { return unsent_.empty() && when_ready_.empty(); }
  pollfd polled() const {
    return {fd_, static_cast<int16_t>(unsent_.empty() ? POLLIN : POLLIN | POLLOUT), 0};
  }
  // `when_ready` is sent when the other end is.
  void Open(const std::string& host, std::string when_ready) {
    Close();
    const auto found = Resolve(host, static_cast<uint16_t>(port_), AI_NUMERICHOST);
    if (!found.ok()) return;
    const addrinfo& to = **found;
    fd_ = socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd_ >= 0 && connect(fd_, to.ai_addr, to.ai_addrlen) != 0 && errno != EINPROGRESS) Close();
    unsent_ = ZmtpReader::Hello(type_);
    when_ready_ = std::move(when_ready);
    reader_ = {};
  }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  // ZmtpReader::Take. CANCELLED: the other end has closed. It is closed after any error.
  absl::Status OnReady(absl::FunctionRef<void(std::vector<std::string>)> on_message) {
    const absl::Status status = Exchange(on_message);
    if (!status.ok()) Close();
    return status;
  }

 private:
  absl::Status Exchange(absl::FunctionRef<void(std::vector<std::string>)> on_message) {
    if (!unsent_.empty()) {
      const ssize_t size = send(fd_, unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
      if (size < 0 && errno != EAGAIN && errno != EINTR) return absl::CancelledError();
      unsent_.erase(0, static_cast<size_t>(std::max<ssize_t>(0, size)));
    }
    std::array<char, size_t{64} << 10> bytes;
    const ssize_t size = recv(fd_, bytes.data(), bytes.size(), 0);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return absl::OkStatus();
    if (size <= 0) return absl::CancelledError();
    const absl::Status read = reader_.Take({bytes.data(), static_cast<size_t>(size)}, on_message);
    if (reader_.ready()) absl::StrAppend(&unsent_, std::exchange(when_ready_, ""));
    return read;
  }

  const absl::string_view type_;
  const int port_;
  int fd_ = -1;
  std::string unsent_, when_ready_;
  ZmtpReader reader_;
};

// Of a rank, of one kind. While messages are sent again, no new ones are read: they wait in the engine, but
// those that had come with the one before which some are missing. Threads: the one of RankMessages.
class RankMessages::Source {
 public:
  Source(const Kind* kind, int32_t rank)
      : kind_(kind),
        rank_(rank),
        live_("SUB", kind->port + rank),
        replay_("DEALER", kind->replay_port + rank) {}

  // The connection to wait for; null for a while. Connects when that is due.
  Connection* Awaited(const std::string& engine, const std::string& host, absl::Time now) {
    if (!live_.open() && now >= connect_at_) {
      connect_at_ = now + kReconnect;
      live_.Open(host, ZmtpReader::Subscription());
      held_.clear();
      resent_ = 0;
      replaying_ = false;
      caught_up_ = kind_->replay_port == 0;
    }
    if (live_.open() && live_.settled() && !std::exchange(caught_up_, true)) Await(next_);
    if (!replaying_) return live_.open() ? &live_ : nullptr;
    if (!asked_ && now >= replay_at_) {
      asked_ = true;
      replay_at_ = now + kReplayAgain;
      replay_ends_ = now + kLongestReplay;
      replay_.Open(host, ZmtpReader::Replay(next_));
    }
    if (!asked_) return nullptr;
    if (!replay_.open() || now >= replay_ends_) EndReplay(engine, false);
    return replaying_ ? &replay_ : live_.open() ? &live_ : nullptr;
  }
  bool replaying() const { return replaying_; }
  // What is awaited.
  void OnReady(const std::string& engine) {
    if (!replaying_) {
      const absl::Status read = live_.OnReady([&](const std::vector<std::string>& parts) {
        held_.push_back(MessageOf(parts));
        Deliver(engine);
      });
      return Tell(engine, absl::IsCancelled(read) ? absl::OkStatus() : read, false);
    }
    bool end = false;
    const absl::Status read = replay_.OnReady([&](const std::vector<std::string>& parts) {
      const Message message = MessageOf(parts);
      end = end || message.number == kEndOfReplay;
      if (end || !message.good || message.number < next_) return;
      resent_ = message.number + 1;
      Take(engine, message);
    });
    if (end || !read.ok()) EndReplay(engine, end);
  }

 private:
  static constexpr uint64_t kEndOfReplay = ~uint64_t{0};
  struct Message {
    bool good = false;
    uint64_t number = 0;
    std::string payload = {};
  };

  static Message MessageOf(const std::vector<std::string>& parts) {
    // Before the number are a topic, and in a replay an empty part, alone in older engines.
    const size_t size = parts.size();
    const bool good = size >= 3 && parts[size - 2].size() == sizeof(uint64_t);
    return good ? Message{true, NumberAt(parts[size - 2].data()), parts[size - 1]} : Message();
  }
  // Asks for what was published from that number on.
  void Await(uint64_t from) {
    replaying_ = true;
    asked_ = false;
    next_ = from;
  }
  void EndReplay(const std::string& engine, bool complete) {
    replay_.Close();
    replaying_ = false;
    if (!complete && live_.open() && !std::exchange(incomplete_, true))
      spdlog::warn("engine {}: rank {} does not send its {} again at port {}: what is missing counts as lost",
                   engine, rank_, kind_->what, kind_->replay_port + rank_);
    Deliver(engine);
  }
  void Deliver(const std::string& engine) {
    while (!held_.empty() && !replaying_) {
      const Message& message = held_.front();
      const bool repeated = message.good && message.number < resent_;
      if (kind_->replay_port != 0 && message.good && !repeated && message.number != next_ &&
          !std::exchange(tried_, true)) {
        // A smaller number: the engine has been restarted.
        return Await(message.number < next_ ? 0 : next_);
      }
      if (!repeated) Take(engine, message), resent_ = 0;
      tried_ = false;
      held_.pop_front();
    }
  }
  void Take(const std::string& engine, const Message& message) {
    next_ = message.number + 1;
    Tell(engine, kind_->take(rank_, message.number, message.payload), true);
  }
  void Tell(const std::string& engine, const absl::Status& taken, bool message) {
    if (!taken.ok() && !std::exchange(refused_, true)) {
      spdlog::warn("engine {}: a message of {} of rank {} is refused: {}", engine, kind_->what, rank_,
                   std::string(taken.message()));
    }
    if (message && taken.ok() && !std::exchange(told_, true))
      spdlog::info("engine {}: rank {} sends {}", engine, rank_, kind_->what);
  }

  const Kind* const kind_;
  const int32_t rank_;
  Connection live_, replay_;
  absl::Time connect_at_ = absl::InfinitePast();
  // The number of the next message. Those below the other one have come again, and come once more first.
  uint64_t next_ = 0, resent_ = 0;
  // Messages are sent again before those that are held, or will be, from replay_at_ on, until replay_ends_.
  bool replaying_ = false, asked_ = false;
  // What came before the connection has been asked for.
  bool caught_up_ = false;
  absl::Time replay_at_ = absl::InfinitePast(), replay_ends_;
  std::deque<Message> held_;
  // What is missing before the first of those has been asked for.
  bool tried_ = false;
  // Its messages have been logged, one that was refused, and a replay without an end.
  bool told_ = false, refused_ = false, incomplete_ = false;
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
    bool all = wake_.fd() >= 0;
    for (const auto& source : sources) {
      const Connection* const awaited = source->Awaited(name_, host_, MonotonicNow());
      polled.push_back(awaited == nullptr ? pollfd{-1, 0, 0} : awaited->polled());
      all = all && awaited != nullptr && !source->replaying();
    }
    if (poll(polled.data(), polled.size(),
             all ? -1 : static_cast<int>(absl::ToInt64Milliseconds(kReconnect))) < 0)
      continue;
    if (polled.front().revents != 0) wake_.Clear();
    for (size_t i = 0; i < sources.size(); ++i)
      if (polled[i + 1].revents != 0) sources[i]->OnReady(name_);
  }
}

}  // namespace bfio::router
