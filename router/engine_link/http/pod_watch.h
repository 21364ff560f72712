// The servers of a Kubernetes InferencePool (inference.networking.k8s.io/v1): its ports on each of its pods
// that is ready and not terminating. Both are listed and then watched at the API server, over HTTPS with the
// service account's CA and token, which are read again. What cannot be read, a watch that ends with an error
// (410 Gone among them) and a pool that changes are listed anew, after kShortestPause to kLongestPause; until
// then, the last servers count. Ownership: owns a thread. Threads: any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/address.h"
#include "common/base/mutex.h"
#include "common/http/http_client.h"
#include "nlohmann/json.hpp"
#include "router/engine_link/engine_list.h"

namespace bfio::router {

// The part of a pod or a pool that matters. INVALID_ARGUMENT with one line.
struct Pod {
  std::string name;
  // An IP address; empty: it has none, is not ready, or terminates.
  std::string host;
};
absl::StatusOr<Pod> ReadPod(const nlohmann::json& object);
struct Pool {
  // As a query: NAME=VALUE, separated by commas.
  std::string selector;
  std::vector<uint16_t> ports;

  bool operator==(const Pool&) const = default;
};
absl::StatusOr<Pool> ReadPool(const nlohmann::json& object);

class PodWatch {
 public:
  static constexpr absl::Duration kShortestPause = absl::Milliseconds(200), kLongestPause = absl::Seconds(10);
  // Of one answer; a watch is begun again after kWatch, and cut off when the server is late for that.
  static constexpr absl::Duration kPatience = absl::Seconds(10), kWatch = absl::Seconds(60);
  // An event has one object; etcd allows 1.5 MiB.
  static constexpr size_t kMostEventBytes = size_t{2} << 20;
  static constexpr int kPageSize = 50, kMostPages = 256;
  // One that ends sooner without an error counts as one that fails.
  static constexpr absl::Duration kShortestWatch = absl::Seconds(1);

  // `engine`: EngineAddress::pool and what belongs to it.
  PodWatch(const EngineAddress& engine, ResolveHost resolve);
  ~PodWatch();
  PodWatch(const PodWatch&) = delete;
  PodWatch& operator=(const PodWatch&) = delete;

  // Waits for the first answer, at most kPatience. An error says why there are no newer ones.
  absl::StatusOr<std::vector<Address>> Servers();

 private:
  enum Kind : size_t { kPool, kPods, kKinds };
  // A watch, from the version after which its events come.
  struct Stream {
    std::string path, version, rest;
    absl::Time began_at;
    std::optional<absl::Status> end;
  };

  void Run();
  // Lists, and watches until something has to be listed anew.
  absl::Status Follow();
  absl::StatusOr<std::string> Get(HttpClient& client, const std::string& path);
  // Calls `take` with each object of the collection; returns its version.
  template <typename Take>
  absl::StatusOr<std::string> List(HttpClient& client, const std::string& path, Take take);
  void Watch(HttpClient& client, Kind kind) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TakeBytes(Kind kind, absl::string_view bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TakeEvent(Kind kind, absl::string_view line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Woken() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string namespace_, name_;
  const Address api_server_;
  const HttpClient::Login login_;
  const ResolveHost resolve_;
  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  // Something has been listed, or the first attempt has failed; the last failure.
  bool known_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  Pool pool_ ABSL_GUARDED_BY(mutex_);
  // Hosts by name.
  std::map<std::string, std::string> pods_ ABSL_GUARDED_BY(mutex_);
  std::array<Stream, kKinds> streams_ ABSL_GUARDED_BY(mutex_);
  absl::Duration pause_ ABSL_GUARDED_BY(mutex_) = kShortestPause;
  std::thread thread_;
};

// Watches each pool that it is asked for from then on.
ResolvePool WatchPools(ResolveHost resolve = ResolveBySystem);

}  // namespace bfio::router
