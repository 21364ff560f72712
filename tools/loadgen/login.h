// What the generator shows the router's APIs: certificates and bearer tokens, from its flags.
//
// Purpose: --client_* for the client API, --admin_* for the admin API; the prefixes are those of the router's
// flags for the same links. Threads: one.
#ifndef BFIO_TOOLS_LOADGEN_LOGIN_H_
#define BFIO_TOOLS_LOADGEN_LOGIN_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/net/login.h"

namespace bfio::loadgen {

using bfio::Login;

// As MakeLogin. `address` is HOST:PORT.
absl::StatusOr<Login> ClientLogin(const std::string& address);
absl::StatusOr<Login> AdminLogin(const std::string& address);

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_LOGIN_H_
