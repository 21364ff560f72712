// What the generator shows the router's APIs: certificates and bearer tokens, from its flags.
//
// Purpose: --client_* for the client API, --admin_* for the admin API; the prefixes are those of the router's
// flags for the same links. Threads: one.
#ifndef BFIO_TOOLS_LOADGEN_LOGIN_H_
#define BFIO_TOOLS_LOADGEN_LOGIN_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/client_context.h"
#include "grpcpp/security/credentials.h"

namespace bfio::loadgen {

struct Login {
  // Plain text without TLS flags. One for all channels.
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  // Empty: none.
  std::string token;

  // Puts the token into a call that has not begun.
  void Present(grpc::ClientContext& context) const;
};

// INVALID_ARGUMENT or NOT_FOUND for files that do not do, and for a token that would go unencrypted to
// another machine. `address` is HOST:PORT.
absl::StatusOr<Login> ClientLogin(const std::string& address);
absl::StatusOr<Login> AdminLogin(const std::string& address);

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_LOGIN_H_
