// Who calls an API: which bearer token a call carries, and whose it is.
//
// Purpose: every RPC asks before it does anything else. Without a tokens file every caller is accepted under
// any name. A refusal is a status for the caller and, now and then, a line in the log, neither of which holds
// the token. Threads: any.
#ifndef BFIO_COMMON_NET_AUTHENTICATOR_H_
#define BFIO_COMMON_NET_AUTHENTICATOR_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

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

  // Whose token the call carries; nothing where no tokens are asked for. UNAUTHENTICATED otherwise.
  absl::StatusOr<std::optional<std::string>> Caller(const grpc::CallbackServerContext& context);
  // For APIs to which all callers are equal.
  absl::Status Check(const grpc::CallbackServerContext& context) { return Caller(context).status(); }

  // For a caller over HTTP: its Authorization header, empty if it has none, and its address.
  absl::Status CheckHttp(absl::string_view authorization, absl::string_view peer);

  // OK, after an empty `tenant` has been set to the caller's, when the caller may speak for `tenant`:
  // PERMISSION_DENIED when the token is another tenant's.
  absl::Status CheckTenant(const grpc::CallbackServerContext& context, std::string& tenant);

 private:
  absl::StatusOr<std::optional<std::string>> Owner(absl::string_view token, absl::string_view peer);
  absl::Status Refuse(absl::string_view peer, absl::StatusCode code, absl::string_view why);

  const std::string api_;
  const std::unique_ptr<TokenFile> tokens_;
  RefusalLog refusals_;
};

}  // namespace bfio

#endif  // BFIO_COMMON_NET_AUTHENTICATOR_H_
