// Who calls an API: which bearer token or certificate a call carries, whose it is, and what that caller may
// do.
//
// Purpose: every RPC asks before it does anything else, and before its message is received. Without a tokens
// file every caller is accepted under any name and may do everything. A refusal is a status for the caller,
// counted, and now and then a line in the log, none of which holds the token. Threads: any.
#ifndef BFIO_COMMON_NET_AUTHENTICATOR_H_
#define BFIO_COMMON_NET_AUTHENTICATOR_H_

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
#include "common/telemetry/refusal_log.h"

namespace bfio {

class Authenticator {
 public:
  // `api` is for messages: "client API". `tokens` may be null.
  Authenticator(std::string api, std::unique_ptr<TokenFile> tokens)
      : api_(std::move(api)), tokens_(std::move(tokens)) {}

  // Called with the address of each gRPC caller that was accepted, as grpc::ServerContext::peer has it.
  // REQUIRES: before the first call.
  void set_on_accepted(std::function<void(const std::string& peer)> on_accepted) {
    on_accepted_ = std::move(on_accepted);
  }

  // Whose token or certificate the call carries; nothing where no tokens are asked for. UNAUTHENTICATED
  // otherwise.
  absl::StatusOr<std::optional<std::string>> Caller(const grpc::CallbackServerContext& context);
  // For APIs to which all callers are equal.
  absl::Status Check(const grpc::CallbackServerContext& context) { return Caller(context).status(); }
  // The caller has been accepted by another rule: its certificate alone.
  void Accepted(const grpc::CallbackServerContext& context) const {
    if (on_accepted_) on_accepted_(context.peer());
  }
  // The same as Check without side effects: not counted or logged, and the caller is not accepted.
  bool Knows(const grpc::CallbackServerContext& context) const;

  // The operator's name in the log, if the role permits the call: the name of the token or certificate, or,
  // where no tokens are asked for, a name in the certificate or the address. UNAUTHENTICATED, or
  // PERMISSION_DENIED for another role.
  absl::StatusOr<std::string> Operator(const grpc::CallbackServerContext& context, Role needed);
  // For a caller over HTTP: its Authorization header, empty if it has none, the names in the certificate that
  // TLS has checked, and its address.
  absl::StatusOr<std::string> HttpOperator(absl::string_view authorization,
                                           const std::vector<std::string>& names, absl::string_view peer,
                                           Role needed);

  // OK, after an empty `tenant` has been set to the caller's, when `caller` (of Caller) may speak for
  // `tenant`: PERMISSION_DENIED when the token is another tenant's.
  absl::Status CheckTenant(const std::optional<std::string>& caller, absl::string_view peer,
                           std::string& tenant);

  // Calls refused since the start.
  uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  using Names = absl::FunctionRef<std::vector<std::string>()>;

  // Who has this token, or, without one, a certificate of these names. REQUIRES: tokens_.
  TokenFile::Owner Find(absl::string_view token, Names names) const;
  // UNAUTHENTICATED unless it is valid.
  absl::Status Accept(const TokenFile::Owner& owner, bool token, absl::string_view peer);
  absl::StatusOr<std::string> OperatorOf(absl::string_view token, Names names, absl::string_view peer,
                                         Role needed);
  absl::Status Refuse(absl::string_view peer, absl::StatusCode code, absl::string_view why);

  const std::string api_;
  const std::unique_ptr<TokenFile> tokens_;
  std::function<void(const std::string&)> on_accepted_;
  std::atomic<uint64_t> refused_{0};
  RefusalLog refusals_;
};

}  // namespace bfio

#endif  // BFIO_COMMON_NET_AUTHENTICATOR_H_
