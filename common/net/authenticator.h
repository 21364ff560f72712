// Authentication and authorisation of an API's callers: by bearer token or certificate. Every RPC is checked
// before it does anything else, and before its message is received. Without a tokens file every caller is
// accepted under any name and may do everything. A refusal is a status for the caller, is counted, and is
// logged at a limited rate; neither status nor log line contains the token. Threads: any.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/auth/token_file.h"
#include "common/base/clock.h"
#include "common/base/fair_share.h"
#include "common/base/mutex.h"
#include "common/base/token_bucket.h"
#include "common/telemetry/line_limiter.h"

namespace bfio {

// A caller of the client API.
struct Caller {
  // The owner of its token or certificate; absent if no tokens are required.
  std::optional<std::string> name;
  // Its entry has role=gateway.
  bool gateway = false;
  // Its entry has trust_kv_transfer.
  bool trust_kv_transfer = false;
  // The tenant that it names in the header "bfio-tenant"; empty: none.
  std::string tenant;
  // Its address.
  std::string peer;
};

// Whose share a call uses: its operator's, or, without a name, its address's; as member its connection.
Peer PeerOf(const grpc::CallbackServerContext& context,
            const std::optional<std::string>& name = std::nullopt);
// The same for a caller of the client API. A gateway's calls use the whole share of the tenant that it names.
// Where no tokens are required, anyone may name tenants: they take the place of the address's connections.
Peer PeerOf(const grpc::CallbackServerContext& context, const Caller& caller);
// The same for an authenticated caller, if it is one.
template <typename Name>
absl::StatusOr<Peer> PeerOf(const grpc::CallbackServerContext& context, const absl::StatusOr<Name>& name) {
  if (!name.ok()) return name.status();
  return PeerOf(context, *name);
}

class Authenticator {
 public:
  // `api` is used in messages, such as "client API". `tokens` may be null. `gateway_calls`: new calls of each
  // tenant of a gateway.
  Authenticator(std::string api, std::unique_ptr<TokenFile> tokens,
                TokenBucket gateway_calls = {4096, 4096, MonotonicNow()})
      : api_(std::move(api)), tokens_(std::move(tokens)), calls_(kCallCounts, gateway_calls) {}

  // Called with the address of each accepted gRPC caller, in the form of grpc::ServerContext::peer. REQUIRES:
  // set before the first call, for one port: the callers of another must have their own Authenticator.
  void set_on_accepted(std::function<void(const std::string& peer, bool gateway)> on_accepted) {
    on_accepted_ = std::move(on_accepted);
  }

  // UNAUTHENTICATED; INVALID_ARGUMENT for a header that names no tenant; RESOURCE_EXHAUSTED when a gateway
  // begins too many calls of one tenant.
  absl::StatusOr<Caller> Identify(const grpc::CallbackServerContext& context);
  // For APIs in which all callers have the same rights.
  absl::StatusOr<Peer> Check(const grpc::CallbackServerContext& context);
  // Records that the caller has been accepted by another rule, by its certificate alone.
  void Accepted(const grpc::CallbackServerContext& context, bool gateway = false) const {
    if (on_accepted_) on_accepted_(context.peer(), gateway);
  }
  // As Check without side effects: not counted, not logged, and the caller is not recorded as accepted.
  bool Knows(const grpc::CallbackServerContext& context) const;

  // The operator's name for the log, if its role permits the call: the name of the token or certificate, or,
  // if no tokens are required, a name in the certificate or the address. UNAUTHENTICATED, or
  // PERMISSION_DENIED for an insufficient role.
  absl::StatusOr<std::string> Operator(const grpc::CallbackServerContext& context, Role needed);
  // The same for a caller over HTTP. Arguments: its Authorization header, empty if it has none; the names in
  // its verified certificate; its address.
  absl::StatusOr<std::string> HttpOperator(absl::string_view authorization,
                                           const std::vector<std::string>& names, absl::string_view peer,
                                           Role needed);

  // OK when `caller` may act for `tenant`; an empty `tenant` is set to the one that a gateway has named, or
  // to the caller's. PERMISSION_DENIED when the token belongs to another tenant.
  absl::Status CheckTenant(const Caller& caller, std::string& tenant);

  // Calls refused since the start.
  uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  using Names = absl::FunctionRef<std::vector<std::string>()>;
  // Of gateways' tenants; those with the same hash share one.
  static constexpr size_t kCallCounts = 1024;

  // Counts a new call of a gateway's tenant.
  absl::Status CountCall(const std::string& tenant);

  // The owner of this token, or, if it is empty, of a certificate with these names. REQUIRES: tokens_.
  BearerTokens::Owner Find(absl::string_view token, Names names) const;
  // UNAUTHENTICATED unless the owner is valid.
  absl::Status Accept(const BearerTokens::Owner& owner, bool token, absl::string_view peer);
  absl::StatusOr<std::string> OperatorOf(absl::string_view token, Names names, absl::string_view peer,
                                         Role needed);
  absl::Status Refuse(absl::string_view peer, absl::StatusCode code, absl::string_view why);

  const std::string api_;
  const std::unique_ptr<TokenFile> tokens_;
  Mutex mutex_;
  std::vector<TokenBucket> calls_ ABSL_GUARDED_BY(mutex_);
  std::function<void(const std::string&, bool)> on_accepted_;
  std::atomic<uint64_t> refused_{0};
  RefusalLog refusals_;
};

}  // namespace bfio
