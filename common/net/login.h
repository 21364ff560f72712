// A program's credentials for the router's APIs: certificates and a bearer token. The client side of the
// router's --X_tls and --X_tokens, with the same checks in every tool. Threads: immutable once made; any.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/net/tls.h"
#include "grpcpp/client_context.h"
#include "grpcpp/security/credentials.h"

namespace bfio {

struct Login {
  // Plain text without TLS files. Shared by all channels.
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  // Empty: no token.
  std::string token;

  // Adds the token to a call that has not begun.
  void Present(grpc::ClientContext& context) const;
};

// INVALID_ARGUMENT or NOT_FOUND, naming the flag (--API_tls, --API_token_file), for unusable files, and for a
// token that would be sent unencrypted to another machine. `address` is HOST:PORT; an empty `token_file`
// means no token.
absl::StatusOr<Login> MakeLogin(const std::string& address, absl::string_view api, const TlsFiles& tls,
                                const std::string& token_file);

}  // namespace bfio
