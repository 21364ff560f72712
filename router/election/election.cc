#include "router/election/election.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/spdlog.h"

namespace bfio::router {
namespace {

// How often a lease is renewed, and a standby looks, in its length; and at least.
constexpr int kRenewals = 3, kLooks = 10;
constexpr absl::Duration kLongestWait = absl::Seconds(1);
// Clocks of two machines do not run alike: the leader thinks that its lease is shorter than etcd does.
constexpr double kShare = 0.9;

absl::Duration Renewal(absl::Duration ttl) {
  return std::min(ttl / kRenewals, kLongestWait);
}

absl::Duration Looking(absl::Duration ttl) {
  return std::min(ttl / kLooks, kLongestWait);
}

}  // namespace

absl::Status CheckElection(const ElectionOptions& options) {
  if (options.ttl < absl::Seconds(2) || options.ttl > absl::Hours(1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a lease of ", absl::FormatDuration(options.ttl), ": must be within 2s..1h"));
  }
  if (options.key.empty()) return absl::InvalidArgumentError("the key is empty");
  if (options.name.empty()) return absl::InvalidArgumentError("the name is empty");
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Election>> Election::Create(ElectionOptions options) {
  if (absl::Status status = CheckElection(options); !status.ok()) return status;
  // Several tries within a lease, whichever endpoints are gone.
  options.etcd.timeout = std::min(options.etcd.timeout, options.ttl / (kRenewals + 1));
  auto etcd = Etcd::Create(options.etcd);
  if (!etcd.ok()) return etcd.status();
  return std::unique_ptr<Election>(new Election(std::move(options), *std::move(etcd)));
}

Election::Election(ElectionOptions options, std::unique_ptr<Etcd> etcd)
    : options_(std::move(options)), etcd_(std::move(etcd)) {}

Election::~Election() {
  Resign();
}

bool Election::Campaign(const std::function<bool(absl::Duration)>& pause,
                        const std::function<void(const std::string& leader)>& on_standby) {
  std::string complaint;
  int64_t known = 0;
  for (;;) {
    EtcdOwner leader;
    const absl::StatusOr<bool> leads = TryToLead(leader);
    if (!leads.ok()) {
      // Once for each kind.
      if (complaint != leads.status().message()) {
        complaint = std::string(leads.status().message());
        spdlog::warn("standing by: {}", complaint);
      }
    } else if (*leads) {
      thread_ = std::thread([this] { KeepLease(); });
      return true;
    } else {
      complaint.clear();
      if (leader.revision != known) on_standby(leader.name);
      known = leader.revision;
    }
    if (pause(Looking(options_.ttl))) return false;
  }
}

absl::StatusOr<bool> Election::TryToLead(EtcdOwner& leader) {
  const absl::StatusOr<EtcdOwner> owner = etcd_->Read(options_.key);
  if (!owner.ok()) return owner.status();
  leader = *owner;
  if (!leader.name.empty()) return false;
  const absl::Time asked = Lease::Now();
  const absl::StatusOr<int64_t> lease = etcd_->Grant(options_.ttl);
  if (!lease.ok()) return lease.status();
  const absl::StatusOr<EtcdClaim> claimed = etcd_->Claim(options_.key, options_.name, *lease);
  const absl::Time end = asked + kShare * options_.ttl;
  if (claimed.ok() && claimed->mine && Lease::Now() < end) {
    lease_id_ = *lease;
    term_ = static_cast<uint64_t>(claimed->owner.revision);
    lease_ = std::make_shared<Lease>(end);
    return true;
  }
  // Nobody shall wait for its end, should the key have been claimed without an answer, or too late.
  etcd_->Revoke(*lease).IgnoreError();
  if (!claimed.ok()) return claimed.status();
  if (claimed->mine) return absl::UnavailableError("etcd took longer than the lease");
  leader = claimed->owner;
  return false;
}

absl::StatusOr<bool> Election::RenewOnce() {
  const absl::StatusOr<bool> alive = etcd_->Renew(lease_id_);
  if (!alive.ok() || !*alive) return alive;
  // Somebody may have removed the key by hand, or written it without the lease; or another router has it.
  const absl::StatusOr<EtcdOwner> owner = etcd_->Read(options_.key);
  if (!owner.ok()) return owner.status();
  return owner->revision == static_cast<int64_t>(term_) && owner->lease == lease_id_;
}

void Election::KeepLease() {
  std::string complaint;
  absl::Duration wait = Renewal(options_.ttl);
  for (;;) {
    {
      MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), wait)) return;
    }
    // What has run out stays so: it may have been another's in between.
    if (!lease_->Holds()) return;
    if (lease_->Unwatched() > options_.ttl + options_.stuck_after) {
      spdlog::critical("nothing has been decided for {}: the lease is given up",
                       absl::FormatDuration(lease_->Unwatched()));
      return lease_->Lose();
    }
    const absl::Time asked = Lease::Now();
    const absl::StatusOr<bool> mine = RenewOnce();
    if (!mine.ok()) {
      if (complaint != mine.status().message()) {
        complaint = std::string(mine.status().message());
        spdlog::warn("the lease of {} is not renewed: {}", options_.key, complaint);
      }
      wait = Looking(options_.ttl);
      continue;
    }
    if (!*mine) {
      spdlog::error("the lease of {} has ended, or the key is another's", options_.key);
      return lease_->Lose();
    }
    complaint.clear();
    wait = Renewal(options_.ttl);
    if (lease_->Holds()) lease_->Extend(asked + kShare * options_.ttl);
  }
}

void Election::Resign() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (!thread_.joinable()) return;
  thread_.join();
  lease_->Lose();
  const absl::Status status = etcd_->Revoke(lease_id_);
  if (!status.ok() && !absl::IsNotFound(status))
    spdlog::warn("the lease of {} is not given back: {}", options_.key, std::string(status.message()));
}

}  // namespace bfio::router
