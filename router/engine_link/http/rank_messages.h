// What the ranks of an engine publish over ZeroMQ, each at a port of its own: messages of a topic, a number
// in sequence (8 bytes, the highest first) and msgpack. Engines are not trusted: of each kind a rank has
// kMostMessages of kMostMessageBytes waiting at most. Ownership: owns a thread, on which messages are taken.
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"

namespace bfio::router {

class RankMessages {
 public:
  static constexpr int kMostMessages = 16, kMostMessageBytes = 1 << 20;
  // An engine that reports more gets sockets for so many, and takes none from others.
  static constexpr size_t kMostRanks = 64;

  struct Kind {
    // For logs.
    std::string what;
    // Of rank 0; the next ranks have the next ones.
    int port = 0;
    // An empty message: it had not these parts. An error: it is refused.
    std::function<absl::Status(int32_t rank, uint64_t number, absl::string_view message)> take;
  };

  // `name`: the engine's, for logs.
  RankMessages(std::string name, std::string host, std::vector<Kind> kinds);
  ~RankMessages();
  RankMessages(const RankMessages&) = delete;
  RankMessages& operator=(const RankMessages&) = delete;

  // Subscribes to all kinds of the rank, unless that is done.
  void Follow(int32_t rank);

 private:
  struct Socket;
  struct Source {
    // Null until the thread has made it.
    std::unique_ptr<Socket> socket;
    // Its messages have been logged, and one that was refused.
    bool told = false, refused = false;
  };

  void Run();
  void Wake() const;
  // Takes a message of it, if there is one.
  void Take(const Kind& kind, int32_t rank, Source& source) const;

  const std::string name_, host_;
  const std::vector<Kind> kinds_;
  const int wake_;
  Mutex mutex_;
  // By rank, one of each kind. Sources are the thread's.
  std::map<int32_t, std::vector<Source>> ranks_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace bfio::router
