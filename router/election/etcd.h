// A client for the parts of etcd that an election needs, over its JSON gateway (API v3, etcd 3.4 and later).
// Leases, and one key that belongs to its first writer. A call goes to the endpoint that answered last, then
// to the others. Errors: UNAVAILABLE when no endpoint answers in time or etcd has no leader, INVALID_ARGUMENT
// for malformed endpoints, PERMISSION_DENIED and other errors of etcd with its message. Threads: one at a
// time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/net/tls.h"

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

// The functions below read etcd's answers, which are untrusted bytes. UNAVAILABLE: the expected content is
// missing.

// The error of an answer that is not HTTP 200, or that ends a stream with an error; never OK. NOT_FOUND: the
// lease does not exist.
absl::Status EtcdErrorIn(absl::string_view reply, int http);

// /v3/lease/grant: the id, not 0, of a lease that is no shorter than asked.
absl::StatusOr<int64_t> LeaseIn(absl::string_view reply, int64_t seconds);
// /v3/lease/keepalive of `lease`: whether the lease exists.
absl::StatusOr<bool> RenewedIn(absl::string_view reply, int64_t lease);
// /v3/kv/range of one key.
absl::StatusOr<EtcdOwner> OwnerIn(absl::string_view reply);
// /v3/kv/txn that writes `name` or reads the first writer. The owner has a name and a revision above 0.
absl::StatusOr<EtcdClaim> ClaimIn(absl::string_view reply, const std::string& name);

struct EtcdOptions {
  // "http://HOST:PORT" or "https://HOST:PORT".
  std::vector<std::string> endpoints;
  // The CA certificates for etcd; this router's certificate and key, where etcd requires them.
  TlsFiles tls;
  // Time limit for connecting to one endpoint and its whole answer.
  absl::Duration timeout = absl::Seconds(5);
};

class Etcd {
 public:
  static absl::StatusOr<std::unique_ptr<Etcd>> Create(EtcdOptions options);
  ~Etcd();

  // Returns the lease's id. etcd may make the lease longer than `ttl`, never shorter.
  absl::StatusOr<int64_t> Grant(absl::Duration ttl);
  // False when the lease does not exist.
  absl::StatusOr<bool> Renew(int64_t lease);
  absl::Status Revoke(int64_t lease);

  absl::StatusOr<EtcdOwner> Read(const std::string& key);
  // Calls only the endpoint that answered last, for callers without time to try the others.
  absl::StatusOr<EtcdOwner> ReadOnce(const std::string& key);
  // Writes `name` to the key with the lease, unless the key exists. REQUIRES: `name` is not empty.
  absl::StatusOr<EtcdClaim> Claim(const std::string& key, const std::string& name, int64_t lease);

 private:
  class Connection;

  explicit Etcd(EtcdOptions options);

  const EtcdOptions options_;
  std::vector<std::unique_ptr<Connection>> connections_;
  // Index of the endpoint that answered last.
  size_t current_ = 0;

  // The JSON answer as text, from the first of `tries` endpoints that answers; `path`: for example
  // "/v3/kv/txn".
  absl::StatusOr<std::string> Post(const std::string& path, const std::string& body, size_t tries);
  absl::StatusOr<EtcdOwner> ReadFrom(const std::string& key, size_t tries);
  absl::StatusOr<std::string> PostToAny(const std::string& path, const std::string& body) {
    return Post(path, body, connections_.size());
  }
};

}  // namespace bfio::router
