// Leader election among routers: a key in etcd, held by a lease. Lets a standby take over. Campaign waits
// until no router leads, takes the key with a lease, and keeps the lease while the router runs. The etcd
// revision at which the router took the key is its term. Terms grow with every leader, and workers refuse
// routers of a smaller term than they have followed (worker/link/router_link.h).
//
// A renewal is one call, and counts from before it was sent. The lease's length determines how slow etcd may
// be: replies that take a quarter of it each time, temporary errors, or one endpoint without an answer do not
// affect a healthy leader. Between renewals the router checks that the key is still its own; a missing answer
// to this check has no effect either.
//
// A leader loses its lease when it cannot renew it within the lease's length, or is paused for that long. The
// decision loop checks lease() in each iteration (Lease::Check). When the lease is lost, the process ends at
// once, without a final message on its streams: the next leader recovers what its workers hold, as after a
// crash. When a loop stops checking, the renewing thread releases the lease and ends the process. Threads:
// Campaign, Resign and destruction from one; a separate thread renews the lease.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/rng.h"
#include "router/election/etcd.h"
#include "router/election/lease.h"

namespace bfio::router {

struct ElectionOptions {
  EtcdOptions etcd;
  std::string key = "/bfio/router";
  // The value of the key while this router leads; not empty.
  std::string name;
  // The lease's length: how long another router waits after a leader has failed. 2 s to an hour; etcd allows
  // no less.
  absl::Duration ttl = absl::Seconds(10);
  // How long, in addition to the lease's length, the decision thread may leave the lease unchecked. After
  // that it counts as stuck, and another router takes over.
  absl::Duration stuck_after = absl::Seconds(30);
  // Ends the process, whose decision thread cannot do it when it is stuck. Called on the renewing thread,
  // after the lease has been released. Empty: the process exits with 1 at once. For tests.
  std::function<void()> end_process;
};

// INVALID_ARGUMENT, with the invalid setting in the message.
absl::Status CheckElection(const ElectionOptions& options);

class Election {
 public:
  static absl::StatusOr<std::unique_ptr<Election>> Create(ElectionOptions options);
  // Resigns.
  ~Election();

  // True once this router leads. False when `pause`, which waits for at most the given time, returns that the
  // process must end. `on_standby` gets the current leader each time it changes. etcd's errors are logged and
  // retried.
  bool Campaign(const std::function<bool(absl::Duration)>& pause,
                const std::function<void(const std::string& leader)>& on_standby);

  // Valid after Campaign has returned true. The lease outlives this object.
  uint64_t term() const { return term_; }
  std::shared_ptr<Lease> lease() const { return lease_; }

  // Releases the key, so that the next router does not have to wait for the end of the lease. Idempotent.
  void Resign();

 private:
  Election(ElectionOptions options, std::unique_ptr<Etcd> etcd);

  // One attempt: true when this router leads now; otherwise sets `leader`.
  absl::StatusOr<bool> TryToLead(EtcdOwner& leader);
  void KeepLease();
  // False when the lease is lost.
  bool Renew();
  // False when the key belongs to another router or is absent. A missing answer from etcd returns true.
  bool ReadKey();
  // The decision thread has stopped checking the lease.
  void OnStuck();
  void Release();
  // Shortens `duration` by a random share, so that routers that started together diverge.
  absl::Duration Jittered(absl::Duration duration);

  const ElectionOptions options_;
  // Used by Campaign's thread, then by the renewing one.
  const std::unique_ptr<Etcd> etcd_;
  int64_t lease_id_ = 0;
  uint64_t term_ = 0;
  std::shared_ptr<Lease> lease_;
  // Used by the thread that uses etcd_; times as in Lease::Now(). `complaint_`: the last error of etcd, to
  // log each once.
  absl::Time renew_at_, check_at_;
  std::string complaint_;
  Rng rng_;
  Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace bfio::router
