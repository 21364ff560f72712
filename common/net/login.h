// What a program shows an API of the router's: certificates and a bearer token.
//
// Purpose: the callers' half of what the router's --X_tls and --X_tokens ask for, checked alike in every
// tool. Threads: any, once it is made.
#ifndef BFIO_COMMON_NET_LOGIN_H_
#define BFIO_COMMON_NET_LOGIN_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/net/tls.h"
#include "grpcpp/client_context.h"
#include "grpcpp/security/credentials.h"

namespace bfio {

struct Login {
  // Plain text without TLS files. One for all channels.
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  // Empty: none.
  std::string token;

  // Puts the token into a call that has not begun.
  void Present(grpc::ClientContext& context) const;
};

// INVALID_ARGUMENT or NOT_FOUND, naming the flag (--API_tls, --API_token_file), for files that do not do,
// and for a token that would go unencrypted to another machine. `address` is HOST:PORT; no token without
// `token_file`.
absl::StatusOr<Login> MakeLogin(const std::string& address, absl::string_view api, const TlsFiles& tls,
                                const std::string& token_file);

}  // namespace bfio

#endif  // BFIO_COMMON_NET_LOGIN_H_
