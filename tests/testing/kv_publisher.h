// An engine's publisher of KV events. Threads: one.
#pragma once

#include <endian.h>
#include <zmq.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace bfio::testing {

class KvPublisher {
 public:
  using Json = nlohmann::json;

  KvPublisher() {
    EXPECT_EQ(zmq_bind(socket_, "tcp://127.0.0.1:*"), 0) << zmq_strerror(zmq_errno());
    char address[64];
    size_t size = sizeof(address);
    zmq_getsockopt(socket_, ZMQ_LAST_ENDPOINT, address, &size);
    const std::string text(address);
    port_ = std::stoi(text.substr(text.rfind(':') + 1));
  }
  ~KvPublisher() {
    const int now = 0;
    zmq_setsockopt(socket_, ZMQ_LINGER, &now, sizeof(now));
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  KvPublisher(const KvPublisher&) = delete;
  KvPublisher& operator=(const KvPublisher&) = delete;

  int port() const { return port_; }
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
    const uint64_t big = htobe64(number);
    Send({"kv", std::string(reinterpret_cast<const char*>(&big), sizeof(big)), payload});
  }

 private:
  void* const context_ = zmq_ctx_new();
  void* const socket_ = zmq_socket(context_, ZMQ_PUB);
  int port_ = 0;
};

}  // namespace bfio::testing
