#include "router/engine_link/http/kv_events.h"

#include <endian.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/spdlog.h"
#include "nlohmann/json.hpp"

namespace bfio::router {
namespace {

using Json = nlohmann::json;

// Of all engines; ZeroMQ's own bound is 1,023.
constexpr int kMostSockets = 1 << 14;

// The places of a batch's fields, and of those of an event that tells a loss.
constexpr std::array<absl::string_view, 3> kBatch = {"ts", "events", "data_parallel_rank"};
constexpr std::array<absl::string_view, 4> kEvent = {"type", "block_hashes", "medium", "group_idx"};

// Reads value by value: the tokens of a prompt need no memory, and nesting has a bound.
class Reader final : public nlohmann::json_sax<Json> {
 public:
  KvLosses losses;

  bool null() override { return Value({}, 0); }
  bool boolean(bool) override { return Value({}, 0); }
  bool number_integer(int64_t value) override { return Value({}, value); }
  bool number_unsigned(uint64_t value) override {
    return Value({}, static_cast<int64_t>(std::min<uint64_t>(value, INT64_MAX)));
  }
  bool number_float(double, const std::string&) override { return Value({}, 0); }
  bool string(std::string& value) override { return Value(value, 0); }
  bool binary(Json::binary_t&) override { return Value({}, 0); }
  bool start_object(size_t) override { return Start(); }
  bool start_array(size_t) override { return Start(); }
  bool key(std::string& name) override { return names_.back() = std::move(name), true; }
  bool end_object() override { return End(); }
  bool end_array() override { return End(); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  struct Event {
    std::string type, medium;
    int64_t blocks = 0, group = 0;
  };

  // What the present value is of the one around it.
  template <size_t kFields>
  absl::string_view NameIn(size_t depth, const std::array<absl::string_view, kFields>& fields) const {
    if (!names_[depth].empty()) return names_[depth];
    return places_[depth] < kFields ? fields[places_[depth]] : "";
  }
  bool InEvents() const { return depth() >= 2 && NameIn(0, kBatch) == "events"; }
  size_t depth() const { return names_.size(); }

  bool Start() {
    constexpr size_t kDepth = 8;
    if (depth() >= kDepth) return false;
    if (depth() == 2) event_ = {};
    names_.emplace_back();
    places_.push_back(0);
    return true;
  }
  bool End() {
    names_.pop_back();
    places_.pop_back();
    if (depth() == 2 && InEvents()) OnEvent();
    return Next();
  }
  bool Value(absl::string_view text, int64_t number) {
    if (depth() == 0) return false;
    if (depth() == 3 && InEvents()) {
      const absl::string_view field = NameIn(2, kEvent);
      if (field == "type") event_.type = std::string(text);
      if (field == "medium") event_.medium = std::string(text);
      if (field == "group_idx") event_.group = number;
    }
    if (depth() == 4 && InEvents() && NameIn(2, kEvent) == "block_hashes") ++event_.blocks;
    return Next();
  }
  bool Next() {
    if (depth() > 0) ++places_.back();
    return true;
  }
  void OnEvent() {
    if (event_.type == "AllBlocksCleared") losses.all = true;
    const bool counts = event_.medium.empty() || event_.medium == "GPU";
    if (event_.type == "BlockRemoved" && counts && event_.group == 0) losses.blocks += event_.blocks;
  }

  // Of the values around the present one, from the outermost: its name in a map, and its place.
  std::vector<std::string> names_;
  std::vector<size_t> places_;
  Event event_;
};

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

absl::StatusOr<KvLosses> ReadKvEvents(absl::string_view payload) {
  Reader reader;
  if (Json::sax_parse(payload.begin(), payload.end(), &reader, Json::input_format_t::msgpack))
    return reader.losses;
  return absl::InvalidArgumentError("it is no msgpack of KV events");
}

struct KvEvents::Socket {
  ~Socket() { zmq_close(handle); }
  void* const handle = zmq_socket(Context(), ZMQ_SUB);
};

KvEvents::KvEvents(std::string name, std::string host, int port)
    : name_(std::move(name)),
      host_(absl::StrContains(host, ':') ? absl::StrCat("[", host, "]") : std::move(host)),
      port_(port),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this] { Run(); }) {}

KvEvents::~KvEvents() {
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
  }
  Wake();
  thread_.join();
  close(wake_);
}

void KvEvents::Wake() const {
  const uint64_t one = 1;
  (void)!write(wake_, &one, sizeof(one));
}

void KvEvents::Follow(int32_t number, int64_t blocks) {
  MutexLock lock(&mutex_);
  if (ranks_.size() >= kMostRanks && !ranks_.contains(number)) return;
  const auto [at, added] = ranks_.try_emplace(number);
  at->second.blocks = std::max<int64_t>(1, blocks);
  if (added) Wake();
}

int64_t KvEvents::TakeLost(int32_t number) {
  MutexLock lock(&mutex_);
  const auto at = ranks_.find(number);
  if (at == ranks_.end()) return 0;
  return static_cast<int64_t>(1e6 * std::min(1.0, std::exchange(at->second.lost, 0)));
}

void KvEvents::Run() {
  for (;;) {
    std::vector<zmq_pollitem_t> polled = {{nullptr, wake_, ZMQ_POLLIN, 0}};
    {
      MutexLock lock(&mutex_);
      if (stopped_) return ranks_.clear();
      for (auto& [number, rank] : ranks_) {
        if (rank.socket == nullptr) {
          rank.socket = std::make_shared<Socket>();
          void* const socket = rank.socket->handle;
          const auto set = [&](int option, auto value) {
            zmq_setsockopt(socket, option, &value, sizeof(value));
          };
          set(ZMQ_RCVHWM, kMostMessages);
          set(ZMQ_MAXMSGSIZE, int64_t{kMostMessageBytes});
          set(ZMQ_LINGER, 0);
          set(ZMQ_IPV6, 1);
          zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0);
          zmq_connect(socket, absl::StrCat("tcp://", host_, ":", port_ + number).c_str());
        }
        polled.push_back({rank.socket->handle, wake_, ZMQ_POLLIN, 0});
      }
    }
    zmq_poll(polled.data(), static_cast<int>(polled.size()), -1);
    uint64_t woken = 0;
    if (polled.front().revents != 0) (void)!read(wake_, &woken, sizeof(woken));
    MutexLock lock(&mutex_);
    for (auto& [number, rank] : ranks_)
      if (rank.socket != nullptr) Take(number, rank);
  }
}

void KvEvents::Take(int32_t number, Rank& rank) {
  // Topic, number, events.
  std::vector<std::string> parts;
  for (int more = 1; more != 0;) {
    zmq_msg_t part;
    zmq_msg_init(&part);
    if (zmq_msg_recv(&part, rank.socket->handle, ZMQ_DONTWAIT) < 0) return (void)zmq_msg_close(&part);
    if (parts.size() < 4)
      parts.emplace_back(static_cast<const char*>(zmq_msg_data(&part)), zmq_msg_size(&part));
    more = zmq_msg_more(&part);
    zmq_msg_close(&part);
  }
  absl::StatusOr<KvLosses> losses = absl::InvalidArgumentError("it has no topic, number and events");
  if (parts.size() == 3 && parts[1].size() == sizeof(uint64_t)) losses = ReadKvEvents(parts[2]);
  if (!losses.ok()) {
    if (!std::exchange(rank.refused, true))
      spdlog::warn("engine {}: a message of KV events of rank {} is refused: {}", name_, number,
                   std::string(losses.status().message()));
    rank.next.reset();
    rank.lost = 1;
    return;
  }
  uint64_t at = 0;
  std::memcpy(&at, parts[1].data(), sizeof(at));
  at = be64toh(at);
  if (!std::exchange(rank.told, true)) spdlog::info("engine {}: rank {} sends KV events", name_, number);
  if (losses->all || (rank.next && at != *rank.next)) rank.lost = 1;
  rank.lost += static_cast<double>(losses->blocks) / static_cast<double>(rank.blocks);
  rank.next = at + 1;
}

}  // namespace bfio::router
