// Which of several routers decides: whoever has a key of etcd's, by a lease.
//
// Purpose: a standby. Campaign waits until nobody leads, takes the key with a lease, and keeps the lease
// while the router runs. The revision at which it took the key is its term: it grows with every leader, and
// workers follow no router of an earlier term than they have followed (worker/link/router_link.h).
//
// A renewal is one call, and counts from before it was sent. How long etcd may take for it follows from the
// lease's length: one that takes a quarter of that each time, or errs for a while, or does not answer at one
// of its endpoints, costs a healthy leader nothing. Whether the key is still this router's is looked at
// between renewals; etcd's silence about that costs nothing either.
//
// A leader that cannot renew its lease for its length, or that was stopped for so long, has lost it: the
// decision loop looks at lease() in each of its turns (Lease::Look), and the process ends, at once and
// without ending a stream in words: what its workers hold is taken over by the next leader, as after a crash.
// A loop that looks no more loses the lease as well.
//
// Threads: Campaign, Resign and destruction from one; the lease is renewed by a thread of its own.
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

// INVALID_ARGUMENT, in words that name what is wrong.
absl::Status CheckElection(const ElectionOptions& options);

class Election {
 public:
  static absl::StatusOr<std::unique_ptr<Election>> Create(ElectionOptions options);
  // Resigns.
  ~Election();

  // True once this router leads; false when `pause` says that the process shall end: it waits for so long, or
  // less. `on_standby` is told who leads meanwhile, each time it is another. etcd's errors are logged and
  // waited out.
  bool Campaign(const std::function<bool(absl::Duration)>& pause,
                const std::function<void(const std::string& leader)>& on_standby);

  // After Campaign was true. The lease outlives this.
  uint64_t term() const { return term_; }
  std::shared_ptr<Lease> lease() const { return lease_; }

  // Gives the key back, so that nobody has to wait for the lease's end. Idempotent.
  void Resign();

 private:
  Election(ElectionOptions options, std::unique_ptr<Etcd> etcd);

  // Once; whether this router leads now, and otherwise who.
  absl::StatusOr<bool> TryToLead(EtcdOwner& leader);
  void KeepLease();
  // False: the lease is lost.
  bool Renew();
  // False: the key is another's, or nobody's. What etcd does not say is no loss.
  bool LookAtKey();
  // Almost `duration`, so that routers that began together do not go on so.
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
