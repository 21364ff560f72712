#include "router/election/election.h"

#include <algorithm>
#include <cstdlib>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/spdlog.h"
#include "common/base/status_macros.h"

namespace bfio::router {
namespace {

// How often a lease is renewed, and how often a standby checks the key, per lease length. A renewal, a check
// and a renewal that take a quarter of the lease each complete within it.
constexpr int kRenewals = 4, kChecks = 10;
// Limit per endpoint, as a fraction of the lease's length, so that another endpoint can be tried in time.
constexpr int kTries = 3;
constexpr absl::Duration kLongestTry = absl::Seconds(5), kLongestInterval = absl::Seconds(1);
// Clocks of two machines differ in rate, so the leader counts its lease as shorter than etcd does.
constexpr double kShare = 0.9;
constexpr double kJitter = 0.2;

absl::Duration CheckInterval(absl::Duration ttl) {
  return std::min(ttl / kChecks, kLongestInterval);
}

}  // namespace

absl::Status CheckElection(const ElectionOptions& options) {
  if (options.ttl < absl::Seconds(2) || options.ttl > absl::Hours(1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("election_ttl is ", absl::FormatDuration(options.ttl), "; must be within 2s..1h"));
  }
  if (options.key.empty()) return absl::InvalidArgumentError("election_key is empty");
  if (options.name.empty()) return absl::InvalidArgumentError("the router's name is empty");
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Election>> Election::Create(ElectionOptions options) {
  BFIO_RETURN_IF_ERROR(CheckElection(options));
  options.etcd.timeout = std::min({options.etcd.timeout, options.ttl / kTries, kLongestTry});
  BFIO_ASSIGN_OR_RETURN(auto etcd, Etcd::Create(options.etcd));
  return std::unique_ptr<Election>(new Election(std::move(options), std::move(etcd)));
}

Election::Election(ElectionOptions options, std::unique_ptr<Etcd> etcd)
    : options_(std::move(options)), etcd_(std::move(etcd)), rng_(std::random_device()()) {}

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
      // Logs each error once.
      if (complaint != leads.status().message()) {
        complaint = std::string(leads.status().message());
        spdlog::warn("standing by, cannot read or claim the election key: {}", complaint);
      }
    } else if (*leads) {
      thread_ = std::thread([this] { KeepLease(); });
      return true;
    } else {
      complaint.clear();
      if (leader.revision != known) on_standby(leader.name);
      known = leader.revision;
    }
    if (pause(Jittered(CheckInterval(options_.ttl)))) return false;
  }
}

absl::StatusOr<bool> Election::TryToLead(EtcdOwner& leader) {
  BFIO_ASSIGN_OR_RETURN(leader, etcd_->Read(options_.key));
  if (!leader.name.empty()) return false;
  const absl::Time asked = Lease::Now();
  BFIO_ASSIGN_OR_RETURN(const int64_t lease, etcd_->Grant(options_.ttl));
  const absl::StatusOr<EtcdClaim> claimed = etcd_->Claim(options_.key, options_.name, lease);
  const absl::Time end = asked + kShare * options_.ttl;
  if (claimed.ok() && claimed->mine && Lease::Now() < end) {
    lease_id_ = lease;
    term_ = static_cast<uint64_t>(claimed->owner.revision);
    lease_ = std::make_shared<Lease>(end);
    renew_at_ = asked + Jittered(options_.ttl / kRenewals);
    check_at_ = Lease::Now();
    return true;
  }
  // The claim may have succeeded without an answer, or too late. Revoking the lease frees the key, so that
  // the next router need not wait.
  etcd_->Revoke(lease).IgnoreError();
  if (!claimed.ok()) return claimed.status();
  if (claimed->mine) return absl::UnavailableError("etcd's answer took longer than the lease (election_ttl)");
  leader = claimed->owner;
  return false;
}

absl::Duration Election::Jittered(absl::Duration duration) {
  return duration * (1 - kJitter * rng_.Uniform());
}

bool Election::Renew() {
  const absl::Time asked = Lease::Now();
  const absl::StatusOr<bool> alive = etcd_->Renew(lease_id_);
  if (!alive.ok()) {
    if (complaint_ != alive.status().message()) {
      complaint_ = std::string(alive.status().message());
      spdlog::warn("cannot renew the lease of election key {}: {}", options_.key, complaint_);
    }
    renew_at_ = Lease::Now() + Jittered(CheckInterval(options_.ttl));
    return true;
  }
  if (!*alive) {
    spdlog::error("the lease of election key {} has expired", options_.key);
    return false;
  }
  complaint_.clear();
  renew_at_ = asked + Jittered(options_.ttl / kRenewals);
  // An expired lease is not extended: another router may have led in between.
  if (lease_->Holds()) lease_->Extend(asked + kShare * options_.ttl);
  return true;
}

bool Election::ReadKey() {
  // An operator may have removed the key, or written it without the lease.
  const absl::StatusOr<EtcdOwner> owner = etcd_->ReadOnce(options_.key);
  check_at_ = Lease::Now() + Jittered(CheckInterval(options_.ttl));
  if (!owner.ok()) return true;
  if (owner->revision == static_cast<int64_t>(term_) && owner->lease == lease_id_) return true;
  spdlog::error("election key {} no longer belongs to this router", options_.key);
  return false;
}

void Election::KeepLease() {
  for (;;) {
    {
      MutexLock lock(&mutex_);
      const absl::Duration wait = std::min(renew_at_, check_at_) - Lease::Now();
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), wait)) return;
    }
    if (!lease_->Holds()) return;
    if (lease_->Unwatched() > options_.ttl + options_.stuck_after) return OnStuck();
    // A check may take a while, and must not delay a renewal that is due.
    const absl::Time now = Lease::Now();
    const bool check = now >= check_at_ && (now < renew_at_ || lease_->Left() > options_.ttl / 2);
    if (!check && now < renew_at_) continue;
    if (!(check ? ReadKey() : Renew())) return lease_->Lose();
  }
}

void Election::OnStuck() {
  spdlog::critical("the decision thread has been stuck for {}: this router releases its lease and exits",
                   absl::FormatDuration(lease_->Unwatched()));
  lease_->Lose();
  Release();
  if (options_.end_process) return options_.end_process();
  spdlog::default_logger()->flush();
  std::_Exit(EXIT_FAILURE);
}

void Election::Release() {
  const absl::Status status = etcd_->Revoke(lease_id_);
  if (!status.ok() && !absl::IsNotFound(status))
    spdlog::warn("cannot release the lease of election key {}: {}", options_.key,
                 std::string(status.message()));
}

void Election::Resign() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (!thread_.joinable()) return;
  thread_.join();
  lease_->Lose();
  Release();
}

}  // namespace bfio::router
