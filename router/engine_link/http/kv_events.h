// An engine's KV events over ZeroMQ (vLLM: --kv-events-config, SGLang: the same), of which only losses
// matter: the blocks that it evicts, and that it has dropped all of them. What the router believes of the
// rank's prefix cache follows from placements, and these lower it. Each rank publishes at a port of its own,
// with numbers in sequence: where one is missing, or a message cannot be read, everything counts as lost.
// Engines are not trusted: a rank has kMostMessages of kMostMessageBytes waiting at most. Ownership: owns a
// thread. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"

namespace bfio::router {

// The events of one message.
struct KvLosses {
  int64_t blocks = 0;
  bool all = false;
};
// Reads msgpack: [time, events, rank], events [type, fields..], or maps with these names. Of several groups
// of layers only the first counts, and only blocks in the GPU. INVALID_ARGUMENT with one line.
absl::StatusOr<KvLosses> ReadKvEvents(absl::string_view payload);

class KvEvents {
 public:
  static constexpr int kMostMessages = 16, kMostMessageBytes = 1 << 20;
  // An engine that reports more gets sockets for so many, and takes none from others.
  static constexpr size_t kMostRanks = 64;

  // Rank r publishes at `port` + r; `name`: the engine's, for logs.
  KvEvents(std::string name, std::string host, int port);
  ~KvEvents();
  KvEvents(const KvEvents&) = delete;
  KvEvents& operator=(const KvEvents&) = delete;

  // Subscribes to the rank, which has so many blocks, unless that is done.
  void Follow(int32_t rank, int64_t blocks);
  // The share of the rank's blocks that it has lost since the last call, in parts per million.
  int64_t TakeLost(int32_t rank);

 private:
  struct Socket;
  struct Rank {
    int64_t blocks = 1;
    std::shared_ptr<Socket> socket;
    // The number of the next message.
    std::optional<uint64_t> next;
    // Its messages have been logged, and one that was refused.
    bool told = false, refused = false;
    double lost = 0;
  };

  void Run();
  void Wake() const;
  // Takes a message of the rank, if there is one.
  void Take(int32_t number, Rank& rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string name_, host_;
  const int port_;
  const int wake_;
  Mutex mutex_;
  std::map<int32_t, Rank> ranks_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace bfio::router
