#include "common/net/authenticator.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace bfio {
namespace {

using Verdict = BearerTokens::Verdict;

// The token of the only "authorization" header; empty otherwise.
absl::string_view PresentedToken(const grpc::CallbackServerContext& context) {
  const auto [first, last] = context.client_metadata().equal_range("authorization");
  if (first == last || std::next(first) != last) return {};
  return BearerToken(absl::string_view(first->second.data(), first->second.size()));
}

}  // namespace

absl::StatusOr<std::optional<std::string>> Authenticator::Caller(const grpc::CallbackServerContext& context) {
  if (tokens_ == nullptr) return std::nullopt;
  return Owner(PresentedToken(context), context.peer());
}

absl::Status Authenticator::CheckHttp(absl::string_view authorization, absl::string_view peer) {
  if (tokens_ == nullptr) return absl::OkStatus();
  return Owner(BearerToken(authorization), peer).status();
}

absl::StatusOr<std::optional<std::string>> Authenticator::Owner(absl::string_view token,
                                                                absl::string_view peer) {
  if (token.empty()) return Refuse(peer, absl::StatusCode::kUnauthenticated, "no bearer token");
  TokenFile::Owner owner = tokens_->Check(token, absl::Now());
  switch (owner.verdict) {
    case Verdict::kValid:
      return std::move(owner.name);
    case Verdict::kExpired:
      return Refuse(peer, absl::StatusCode::kUnauthenticated, "the bearer token has expired");
    case Verdict::kUnknown:
      break;
  }
  return Refuse(peer, absl::StatusCode::kUnauthenticated, "unknown bearer token");
}

absl::Status Authenticator::CheckTenant(const grpc::CallbackServerContext& context, std::string& tenant) {
  const absl::StatusOr<std::optional<std::string>> caller = Caller(context);
  if (!caller.ok()) return caller.status();
  if (!caller->has_value()) return absl::OkStatus();
  if (tenant.empty()) tenant = **caller;
  if (tenant == **caller) return absl::OkStatus();
  return Refuse(context.peer(), absl::StatusCode::kPermissionDenied, "the bearer token is another tenant's");
}

absl::Status Authenticator::Refuse(absl::string_view peer, absl::StatusCode code, absl::string_view why) {
  refusals_.Add(absl::StrCat(api_, ": ", why), peer);
  return absl::Status(code, why);
}

}  // namespace bfio
