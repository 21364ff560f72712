// An engine's publisher of KV events, as vLLM's: it sends again what it has published. Threads: one.
#pragma once

#include <endian.h>
#include <zmq.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace bfio::testing {

class KvPublisher {
 public:
  using Json = nlohmann::json;

  KvPublisher() : thread_([this] { SendAgain(); }) {}
  ~KvPublisher() {
    stopped_ = true;
    thread_.join();
    for (void* const socket : {socket_, replay_}) {
      const int now = 0;
      zmq_setsockopt(socket, ZMQ_LINGER, &now, sizeof(now));
      zmq_close(socket);
    }
    zmq_ctx_term(context_);
  }
  KvPublisher(const KvPublisher&) = delete;
  KvPublisher& operator=(const KvPublisher&) = delete;

  int port() const { return PortOf(socket_); }
  int replay_port() const { return PortOf(replay_); }
  size_t replays() const { return replays_; }
  static std::string Packed(const Json& json) {
    const std::vector<uint8_t> bytes = Json::to_msgpack(json);
    return {bytes.begin(), bytes.end()};
  }
  // The parts of a message.
  void Send(const std::vector<std::string>& parts) {
    for (size_t i = 0; i < parts.size(); ++i)
      zmq_send(socket_, parts[i].data(), parts[i].size(), i + 1 < parts.size() ? ZMQ_SNDMORE : 0);
  }
  void Send(uint64_t number, const std::string& payload) {
    Keep(number, payload);
    Send({"kv", BytesOf(number), payload});
  }
  // It is lost on the way.
  void Keep(uint64_t number, const std::string& payload) {
    MutexLock lock(&mutex_);
    kept_.emplace_back(number, payload);
  }
  // It is another one from now on.
  void Restart() {
    MutexLock lock(&mutex_);
    kept_.clear();
  }

 private:
  static std::string BytesOf(uint64_t number) {
    const uint64_t big = htobe64(number);
    return {reinterpret_cast<const char*>(&big), sizeof(big)};
  }
  void* Bound(int type) const {
    void* const socket = zmq_socket(context_, type);
    EXPECT_EQ(zmq_bind(socket, "tcp://127.0.0.1:*"), 0) << zmq_strerror(zmq_errno());
    return socket;
  }
  static int PortOf(void* socket) {
    char address[64];
    size_t size = sizeof(address);
    zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, address, &size);
    const std::string text(address);
    return std::stoi(text.substr(text.rfind(':') + 1));
  }
  void Answer(const std::string& client, const std::string& number, const std::string& payload) {
    for (const std::string* const part : {&client, &empty_, &empty_, &number, &payload})
      zmq_send(replay_, part->data(), part->size(), part == &payload ? 0 : ZMQ_SNDMORE);
  }
  // A question has the client, nothing, and the first number.
  void SendAgain() {
    const int longest_ms = 5;
    zmq_setsockopt(replay_, ZMQ_RCVTIMEO, &longest_ms, sizeof(longest_ms));
    while (!stopped_) {
      char client[256];
      uint64_t from = 0;
      const int size = zmq_recv(replay_, client, sizeof(client), 0);
      if (size < 0) continue;
      zmq_recv(replay_, nullptr, 0, 0);
      EXPECT_EQ(zmq_recv(replay_, &from, sizeof(from), 0), static_cast<int>(sizeof(from)));
      ++replays_;
      const std::string to(client, static_cast<size_t>(size));
      MutexLock lock(&mutex_);
      for (const auto& [number, payload] : kept_)
        if (number >= be64toh(from)) Answer(to, BytesOf(number), payload);
      Answer(to, BytesOf(~uint64_t{0}), "");
    }
  }

  const std::string empty_;
  void* const context_ = zmq_ctx_new();
  void* const socket_ = Bound(ZMQ_PUB);
  void* const replay_ = Bound(ZMQ_ROUTER);
  std::atomic<bool> stopped_ = false;
  std::atomic<size_t> replays_ = 0;
  Mutex mutex_;
  std::vector<std::pair<uint64_t, std::string>> kept_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace bfio::testing
