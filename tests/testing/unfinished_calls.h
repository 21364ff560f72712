// Calls whose message never ends: a gRPC client that begins many calls and finishes none.
//
// Purpose: measures what a server stores for a peer that has not yet sent a complete message. gRPC's own
// clients send whole messages only, so this implements HTTP/2 itself: calls with a message whose last byte is
// never sent, as far as the server's flow control allows. Threads: one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace bfio::testing {

class UnfinishedCalls {
 public:
  // Connects to HOST:PORT, an IPv4 address. `token`: the calls' bearer token; `tenant`: the one that they
  // name; empty: none.
  explicit UnfinishedCalls(const std::string& address, std::string token = "", std::string tenant = "");
  ~UnfinishedCalls();
  UnfinishedCalls(const UnfinishedCalls&) = delete;
  UnfinishedCalls& operator=(const UnfinishedCalls&) = delete;

  // Begins `calls` calls of `method` ("/package.Service/Method"), each with a message of `message_bytes`, or
  // with headers only if that is 0. A message `first` comes before, whole.
  // Returns when every message has been sent except for its last byte or its call was refused, when the
  // server has closed the connection, or when it has accepted nothing for `patience`. Called once. False: it
  // could not connect.
  bool Send(const std::string& method, int calls, uint32_t message_bytes, absl::Duration patience,
            const std::string& first = "");

  // Begins one call whose headers never end: a single text of `bytes` or more, or, if `indexed`, as many
  // headers that HPACK encodes in one byte, in as many frames as necessary. Returns when this much has been
  // sent, when the server has closed the connection, or when it has accepted nothing for `patience`. Called
  // once, instead of Send. False: it could not connect.
  bool SendHeaders(uint64_t bytes, absl::Duration patience, bool indexed = false);

  // Begins `calls` calls and resets each at once. Returns when all is sent, or as above. Called once, instead
  // of Send. False: it could not connect.
  bool SendResets(const std::string& method, int calls, absl::Duration patience);

  // Message bytes that the server's flow control allowed.
  uint64_t sent_bytes() const { return sent_bytes_; }
  // The server has closed the connection.
  bool ended() const { return ended_; }
  // Calls that the server ended, as far as Send or Read has seen it.
  int refused() const { return refused_; }
  // Reads what has come.
  void Read() {
    while (Exchange(absl::ZeroDuration())) {
    }
  }

 private:
  struct Call {
    int64_t window = 0;
    uint32_t left = 0;
    bool open = true;
  };

  void AddFrame(uint8_t type, uint8_t flags, uint32_t stream, absl::string_view payload);
  void AddHeaders(uint32_t stream, const std::string& method);
  // Queues as much message data as the flow-control windows allow.
  void AddData();
  bool Done() const;
  // Reads and writes once; false at the end of the connection, or when nothing happened for `patience`.
  bool Exchange(absl::Duration patience);
  bool End() {
    ended_ = true;
    return false;
  }
  // Handles the complete frames of in_.
  void TakeFrames();
  void TakeFrame(uint8_t type, uint8_t flags, uint32_t stream, absl::string_view payload);
  void TakeSettings(absl::string_view payload);
  Call* Find(uint32_t stream);

  const std::string token_, tenant_;
  int fd_ = -1;
  std::string in_, out_;
  bool ended_ = false;
  int64_t window_ = 65535, initial_window_ = 65535;
  // Call i has stream 2 i + 1.
  std::vector<Call> calls_;
  uint64_t sent_bytes_ = 0;
  int refused_ = 0;
};

}  // namespace bfio::testing
