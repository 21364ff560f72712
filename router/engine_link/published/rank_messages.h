// What the ranks of an engine publish over ZeroMQ, each at a port of its own: messages of a topic, a number
// in sequence (8 bytes, the highest first) and msgpack. At another port they send again what they have
// published, as vLLM does (replay_endpoint): what came before the router, and what is missing. Engines are
// not trusted: of each kind, a rank has one unfinished message of ZmtpReader::kMostBytes at most, and ranks
// are read in turns. Not ZeroMQ's own library, which keeps a message's parts until the last has come, however
// many. Ownership: owns a thread, on which messages are taken. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/waker.h"

namespace bfio::router {

// A client's end of ZMTP 3.0 (rfc.zeromq.org/spec/23), without encryption. Pure. Threads: one.
class ZmtpReader {
 public:
  static constexpr size_t kMostBytes = 1 << 20, kMostParts = 8;

  // What the client sends: Hello at once, of a socket of type SUB or DEALER; when ready() the one
  // Subscription, of all topics, and the other Replay, of all messages from a number on.
  static std::string Hello(absl::string_view type);
  static std::string Subscription() { return {"\0\1\1", 3}; }
  static std::string Replay(uint64_t from);
  bool ready() const { return ready_; }
  // Calls `on_message` with the parts of each message that is complete. After an error the connection must
  // be closed.
  absl::Status Take(absl::string_view bytes, absl::FunctionRef<void(std::vector<std::string>)> on_message);

 private:
  static constexpr size_t kGreetingBytes = 64;
  static constexpr char kVersion = 3;

  // The publisher's greeting, and its first command, have come.
  bool greeted_ = false, ready_ = false;
  // What is not complete: bytes, and a message's parts with their sizes.
  std::string text_;
  std::vector<std::string> parts_;
  size_t bytes_ = 0;
};

class RankMessages {
 public:
  // An engine that reports more gets connections for so many, and takes none from others.
  static constexpr size_t kMostRanks = 64;
  // Between attempts to connect.
  static constexpr absl::Duration kReconnect = absl::Milliseconds(200);
  // Between two replays of a rank, and the longest one.
  static constexpr absl::Duration kReplayAgain = absl::Seconds(1), kLongestReplay = absl::Seconds(20);

  struct Kind {
    // For logs.
    std::string what;
    // Of rank 0; the next ranks have the next ones. 0: nothing is sent again.
    int port = 0, replay_port = 0;
    // An empty message: it had not these parts. An error: it is refused. Numbers follow one another, but
    // where an engine has been restarted, or does not have what is missing.
    std::function<absl::Status(int32_t rank, uint64_t number, absl::string_view message)> take;
  };

  // `name`: the engine's, for logs. `host`: an IP address.
  RankMessages(std::string name, std::string host, std::vector<Kind> kinds);
  ~RankMessages();
  RankMessages(const RankMessages&) = delete;
  RankMessages& operator=(const RankMessages&) = delete;

  // Subscribes to all kinds of the rank, unless that is done.
  void Follow(int32_t rank);

 private:
  class Connection;
  class Source;

  void Run();

  const std::string name_, host_;
  const std::vector<Kind> kinds_;
  const Waker wake_;
  Mutex mutex_;
  std::set<int32_t> ranks_ ABSL_GUARDED_BY(mutex_);
  // Those that the thread has not seen.
  std::vector<int32_t> added_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace bfio::router
