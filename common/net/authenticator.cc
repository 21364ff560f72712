#include "common/net/authenticator.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/address.h"
#include "common/base/status_macros.h"
#include "common/net/tls.h"

namespace bfio {
namespace {

using Verdict = BearerTokens::Verdict;

constexpr char kTenantHeader[] = "bfio-tenant";

// The token of the "authorization" header if there is exactly one; empty otherwise.
absl::string_view PresentedToken(const grpc::CallbackServerContext& context) {
  const auto [first, last] = context.client_metadata().equal_range("authorization");
  if (first == last || std::next(first) != last) return {};
  return BearerToken(absl::string_view(first->second.data(), first->second.size()));
}

}  // namespace

Peer PeerOf(const grpc::CallbackServerContext& context, const std::optional<std::string>& name) {
  std::string connection = context.peer();
  // A tenant's name cannot be that of an address's group.
  return {name ? absl::StrCat("tenant ", *name) : AccountOf(connection), connection, connection};
}

Peer PeerOf(const grpc::CallbackServerContext& context, const Caller& caller) {
  if (caller.gateway) {
    Peer peer = PeerOf(context, caller.tenant.empty() ? caller.name : caller.tenant);
    peer.member.clear();
    return peer;
  }
  Peer peer = PeerOf(context, caller.name);
  if (!caller.name && !caller.tenant.empty()) peer.member = caller.tenant;
  return peer;
}

absl::StatusOr<Caller> Authenticator::Identify(const grpc::CallbackServerContext& context) {
  Caller caller{.peer = context.peer()};
  if (tokens_ != nullptr) {
    const absl::string_view token = PresentedToken(context);
    BearerTokens::Owner owner = Find(token, [&] { return PeerNames(*context.auth_context()); });
    BFIO_RETURN_IF_ERROR(Accept(owner, !token.empty(), caller.peer));
    caller.name = std::move(owner.name);
    caller.gateway = owner.role == Role::kGateway;
    caller.trust_kv_transfer = owner.trust_kv_transfer;
  }
  const auto tenant = context.client_metadata().find(kTenantHeader);
  if (tenant != context.client_metadata().end())
    caller.tenant.assign(tenant->second.data(), tenant->second.size());
  const bool by_tenant = caller.gateway && !caller.tenant.empty();
  Accepted(context, by_tenant);
  // Protobuf checks this for text in messages. Tenants are names in metrics and logs.
  if (!std::all_of(caller.tenant.begin(), caller.tenant.end(), absl::ascii_isgraph))
    return absl::InvalidArgumentError(absl::StrCat(kTenantHeader, " must be printable ASCII without spaces"));
  if (by_tenant) BFIO_RETURN_IF_ERROR(CountCall(caller.tenant));
  return caller;
}

absl::Status Authenticator::CountCall(const std::string& tenant) {
  MutexLock lock(&mutex_);
  TokenBucket& calls = calls_[std::hash<std::string>()(tenant) % kCallCounts];
  if (calls.Wait(1, MonotonicNow()) > absl::ZeroDuration())
    return absl::ResourceExhaustedError("the gateway begins too many calls of this tenant");
  calls.Take(1);
  return absl::OkStatus();
}

absl::StatusOr<Peer> Authenticator::Check(const grpc::CallbackServerContext& context) {
  return PeerOf(context, Identify(context));
}

bool Authenticator::Knows(const grpc::CallbackServerContext& context) const {
  return tokens_ == nullptr || Find(PresentedToken(context), [&] {
                                 return PeerNames(*context.auth_context());
                               }).verdict == Verdict::kValid;
}

absl::StatusOr<std::string> Authenticator::Operator(const grpc::CallbackServerContext& context, Role needed) {
  absl::StatusOr<std::string> who = OperatorOf(
      PresentedToken(context), [&] { return PeerNames(*context.auth_context()); }, context.peer(), needed);
  if (who.ok()) Accepted(context);
  return who;
}

absl::StatusOr<std::string> Authenticator::HttpOperator(absl::string_view authorization,
                                                        const std::vector<std::string>& names,
                                                        absl::string_view peer, Role needed) {
  return OperatorOf(
      BearerToken(authorization), [&] { return names; }, peer, needed);
}

absl::StatusOr<std::string> Authenticator::OperatorOf(absl::string_view token, Names names,
                                                      absl::string_view peer, Role needed) {
  if (tokens_ == nullptr) {
    const std::vector<std::string> shown = names();
    return shown.empty() ? std::string(peer) : shown.front();
  }
  BearerTokens::Owner owner = Find(token, names);
  if (absl::Status status = Accept(owner, !token.empty(), peer); !status.ok()) return status;
  if (owner.role < needed) {
    return Refuse(peer, absl::StatusCode::kPermissionDenied,
                  needed == Role::kRead ? "this call needs role=read" : "this call needs role=operate");
  }
  return std::move(owner.name);
}

BearerTokens::Owner Authenticator::Find(absl::string_view token, Names names) const {
  return token.empty() ? tokens_->FindCertificate(names(), absl::Now()) : tokens_->Find(token, absl::Now());
}

absl::Status Authenticator::Accept(const BearerTokens::Owner& owner, bool token, absl::string_view peer) {
  switch (owner.verdict) {
    case Verdict::kValid: return absl::OkStatus();
    case Verdict::kExpired:
      return Refuse(peer, absl::StatusCode::kUnauthenticated,
                    token ? "the bearer token has expired" : "the certificate's entry has expired");
    case Verdict::kUnknown: break;
  }
  return Refuse(peer, absl::StatusCode::kUnauthenticated, token ? "unknown bearer token" : "no bearer token");
}

absl::Status Authenticator::CheckTenant(const Caller& caller, std::string& tenant) {
  if (!caller.name) return absl::OkStatus();
  if (tenant.empty()) tenant = caller.gateway && !caller.tenant.empty() ? caller.tenant : *caller.name;
  if (caller.gateway || tenant == *caller.name) return absl::OkStatus();
  return Refuse(caller.peer, absl::StatusCode::kPermissionDenied,
                "the bearer token belongs to another tenant");
}

absl::Status Authenticator::Refuse(absl::string_view peer, absl::StatusCode code, absl::string_view why) {
  refused_.fetch_add(1, std::memory_order_relaxed);
  refusals_.Add(absl::StrCat(api_, ": ", why), peer);
  return absl::Status(code, why);
}

}  // namespace bfio
