// Leader election among routers: a key in etcd, held by a lease.
//
// Purpose: a standby. Campaign waits until no router leads, takes the key with a lease, and keeps the lease
// while the router runs. The revision at which it took the key is its term. Terms grow with every leader, and
// workers refuse routers of a smaller term than they have followed (worker/link/router_link.h).
//
// A renewal is one call, and counts from before it was sent. The lease's length determines how long etcd may
// take: replies that take a quarter of it each time, errors for a while, or one endpoint without an
// answer do not affect a healthy leader. Between renewals the router checks that the key is still its own; a
// missing answer to that has no effect either.
//
// A leader that cannot renew its lease for its length, or that was paused for so long, has lost it: the
// decision loop checks lease() in each iteration (Lease::Look), and the process ends at once and
// without a final message on its streams: the next leader recovers what its workers hold, as after a crash.
// A loop that does not check any more loses the lease as well.
//
// Threads: Campaign, Resign and destruction from one; a separate thread renews the lease.
#ifndef BFIO_ROUTER_ELECTION_ELECTION_H_
#define BFIO_ROUTER_ELECTION_ELECTION_H_

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
  // What the key says while this router leads; not empty.
  std::string name;
  // How long a leader that is gone stays leader. 2 s to an hour: etcd makes none shorter.
  absl::Duration ttl = absl::Seconds(10);
  // A decision thread that has not looked at the lease for so long, over and above its length, is stuck:
  // another router shall lead.
  absl::Duration stuck_after = absl::Seconds(30);
};

// INVALID_ARGUMENT, naming the invalid setting.
absl::Status CheckElection(const ElectionOptions& options);

class Election {
 public:
  static absl::StatusOr<std::unique_ptr<Election>> Create(ElectionOptions options);
  // Resigns.
  ~Election();

  // True once this router leads; false when `pause` says that the process shall end: it waits for so long, or
  // less. `on_standby` gets the current leader, each time it changes. etcd's errors are logged and
  // retried.
  bool Campaign(const std::function<bool(absl::Duration)>& pause,
                const std::function<void(const std::string& leader)>& on_standby);

  // After Campaign was true. The lease outlives this.
  uint64_t term() const { return term_; }
  std::shared_ptr<Lease> lease() const { return lease_; }

  // Releases the key, so that the next router need not wait for the lease's end. Idempotent.
  void Resign();

 private:
  Election(ElectionOptions options, std::unique_ptr<Etcd> etcd);

  // One attempt; whether this router leads now, and otherwise the leader.
  absl::StatusOr<bool> TryToLead(EtcdOwner& leader);
  void KeepLease();
  // False: the lease is lost.
  bool Renew();
  // False: the key is another's, or absent. A missing answer of etcd is no loss.
  bool LookAtKey();
  // Almost `duration`, so that routers that started together diverge.
  absl::Duration Jittered(absl::Duration duration);

  const ElectionOptions options_;
  // Of Campaign's thread, then of the renewing one.
  const std::unique_ptr<Etcd> etcd_;
  int64_t lease_id_ = 0;
  uint64_t term_ = 0;
  std::shared_ptr<Lease> lease_;
  // Of whichever thread etcd_ is of; by Lease::Now(). `complaint_` is etcd's last, to say each once.
  absl::Time renew_at_, look_at_;
  std::string complaint_;
  Rng rng_;
  Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ELECTION_ELECTION_H_
