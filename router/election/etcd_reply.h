// What etcd's JSON gateway answers, as values.
//
// Purpose: bytes from outside become what an election may rely on. Whatever does not say what it should is
// UNAVAILABLE. Pure; any thread.
#ifndef BFIO_ROUTER_ELECTION_ETCD_REPLY_H_
#define BFIO_ROUTER_ELECTION_ETCD_REPLY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bfio::router {

// Who has a key.
struct EtcdOwner {
  // The key's value; empty: the key does not exist.
  std::string name;
  // etcd's revision when it was written: later owners have larger ones, in all of etcd.
  int64_t revision = 0;
  // With which it was written last; 0: none, so it stays for ever.
  int64_t lease = 0;
};

// What became of an attempt to take a key.
struct EtcdClaim {
  bool mine = false;
  EtcdOwner owner;
};

// Of an answer that is not HTTP's 200, or is the error that a stream ends with; never OK. NOT_FOUND: there is
// no such lease.
absl::Status EtcdErrorIn(absl::string_view reply, int http);

// /v3/lease/grant: the lease's id, not 0.
absl::StatusOr<int64_t> LeaseIn(absl::string_view reply);
// /v3/lease/keepalive of `lease`: whether it lives.
absl::StatusOr<bool> RenewedIn(absl::string_view reply, int64_t lease);
// /v3/kv/range of one key.
absl::StatusOr<EtcdOwner> OwnerIn(absl::string_view reply);
// /v3/kv/txn that puts `name` or reads the first writer. The owner has a name and a revision above 0.
absl::StatusOr<EtcdClaim> ClaimIn(absl::string_view reply, const std::string& name);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ELECTION_ETCD_REPLY_H_
