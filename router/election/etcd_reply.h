// Parses the answers of etcd's JSON gateway.
//
// Purpose: converts untrusted bytes to values on which an election may rely. An answer without the expected
// content is UNAVAILABLE. Pure; any thread.
#ifndef BFIO_ROUTER_ELECTION_ETCD_REPLY_H_
#define BFIO_ROUTER_ELECTION_ETCD_REPLY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bfio::router {

// The owner of a key.
struct EtcdOwner {
  // The key's value; empty: the key does not exist.
  std::string name;
  // etcd's revision when the key was written: later owners have larger ones, across all of etcd.
  int64_t revision = 0;
  // The lease of the last write; 0: none, so the key does not expire.
  int64_t lease = 0;
};

// The result of an attempt to take a key.
struct EtcdClaim {
  bool mine = false;
  EtcdOwner owner;
};

// The error of an answer that is not HTTP 200, or that ends a stream with an error; never OK. NOT_FOUND: the
// lease does not exist.
absl::Status EtcdErrorIn(absl::string_view reply, int http);

// /v3/lease/grant: the lease's id, not 0.
absl::StatusOr<int64_t> LeaseIn(absl::string_view reply);
// /v3/lease/keepalive of `lease`: whether the lease exists.
absl::StatusOr<bool> RenewedIn(absl::string_view reply, int64_t lease);
// /v3/kv/range of one key.
absl::StatusOr<EtcdOwner> OwnerIn(absl::string_view reply);
// /v3/kv/txn that writes `name` or reads the first writer. The owner has a name and a revision above 0.
absl::StatusOr<EtcdClaim> ClaimIn(absl::string_view reply, const std::string& name);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ELECTION_ETCD_REPLY_H_
