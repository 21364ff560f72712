#include "router/engine_link/http/rank_messages.h"

#include <endian.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/spdlog.h"

namespace bfio::router {
namespace {

// Of all engines; ZeroMQ's own bound is 1,023.
constexpr int kMostSockets = 1 << 14;

// As long as the process; its thread waits for all sockets.
void* Context() {
  static void* const context = [] {
    void* const made = zmq_ctx_new();
    zmq_ctx_set(made, ZMQ_MAX_SOCKETS, kMostSockets);
    return made;
  }();
  return context;
}

}  // namespace

struct RankMessages::Socket {
  explicit Socket(const std::string& address) {
    const auto set = [this](int option, auto value) {
      zmq_setsockopt(handle, option, &value, sizeof(value));
    };
    set(ZMQ_RCVHWM, kMostMessages);
    set(ZMQ_MAXMSGSIZE, int64_t{kMostMessageBytes});
    set(ZMQ_LINGER, 0);
    set(ZMQ_IPV6, 1);
    zmq_setsockopt(handle, ZMQ_SUBSCRIBE, "", 0);
    zmq_connect(handle, address.c_str());
  }
  ~Socket() { zmq_close(handle); }
  void* const handle = zmq_socket(Context(), ZMQ_SUB);
};

RankMessages::RankMessages(std::string name, std::string host, std::vector<Kind> kinds)
    : name_(std::move(name)),
      host_(absl::StrContains(host, ':') ? absl::StrCat("[", host, "]") : std::move(host)),
      kinds_(std::move(kinds)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this] { Run(); }) {}

RankMessages::~RankMessages() {
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
  }
  Wake();
  thread_.join();
  close(wake_);
}

void RankMessages::Wake() const {
  const uint64_t one = 1;
  (void)!write(wake_, &one, sizeof(one));
}

void RankMessages::Follow(int32_t rank) {
  MutexLock lock(&mutex_);
  if (ranks_.size() >= kMostRanks || ranks_.contains(rank)) return;
  ranks_[rank].resize(kinds_.size());
  Wake();
}

void RankMessages::Run() {
  struct Entry {
    const Kind* kind;
    int32_t rank;
    Source* source;
  };
  for (;;) {
    std::vector<zmq_pollitem_t> polled = {{nullptr, wake_, ZMQ_POLLIN, 0}};
    std::vector<Entry> entries;
    {
      MutexLock lock(&mutex_);
      if (stopped_) return ranks_.clear();
      for (auto& [rank, sources] : ranks_)
        for (size_t i = 0; i < kinds_.size(); ++i) entries.push_back({&kinds_[i], rank, &sources[i]});
    }
    for (auto& [kind, rank, source] : entries) {
      if (source->socket == nullptr)
        source->socket = std::make_unique<Socket>(absl::StrCat("tcp://", host_, ":", kind->port + rank));
      polled.push_back({source->socket->handle, 0, ZMQ_POLLIN, 0});
    }
    zmq_poll(polled.data(), static_cast<int>(polled.size()), -1);
    uint64_t woken = 0;
    if (polled.front().revents != 0) (void)!read(wake_, &woken, sizeof(woken));
    for (auto& [kind, rank, source] : entries) Take(*kind, rank, *source);
  }
}

void RankMessages::Take(const Kind& kind, int32_t rank, Source& source) const {
  std::vector<std::string> parts;
  for (int more = 1; more != 0;) {
    zmq_msg_t part;
    zmq_msg_init(&part);
    if (zmq_msg_recv(&part, source.socket->handle, ZMQ_DONTWAIT) < 0) return (void)zmq_msg_close(&part);
    if (parts.size() < 4)
      parts.emplace_back(static_cast<const char*>(zmq_msg_data(&part)), zmq_msg_size(&part));
    more = zmq_msg_more(&part);
    zmq_msg_close(&part);
  }
  uint64_t number = 0;
  const bool good = parts.size() == 3 && parts[1].size() == sizeof(number);
  if (good) std::memcpy(&number, parts[1].data(), sizeof(number));
  const absl::Status taken = kind.take(rank, be64toh(number), good ? parts[2] : "");
  if (!taken.ok() && !std::exchange(source.refused, true)) {
    spdlog::warn("engine {}: a message of {} of rank {} is refused: {}", name_, kind.what, rank,
                 std::string(taken.message()));
  }
  if (taken.ok() && !std::exchange(source.told, true))
    spdlog::info("engine {}: rank {} sends {}", name_, rank, kind.what);
}

}  // namespace bfio::router
