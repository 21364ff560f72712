// The router's listening ports: how each one is protected, and checks that this is enough. Three APIs for
// three kinds of callers (clients, workers, operators), with separate credentials. Threads: one.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/net/authenticator.h"
#include "common/net/port.h"
#include "router/app/options.h"

namespace bfio::router {

// INVALID_ARGUMENT or NOT_FOUND for malformed addresses; for unusable files; for a port that other machines
// can reach without encryption or authentication, unless options.insecure is set; and for workers that would
// share the clients' protected port.
absl::Status CheckPorts(const RouterOptions& options);

// True when operators may act at the HTTP port as at the admin port: only where the admin port listens at the
// same address. An HTTP port in a separate monitoring network is read-only.
bool HttpOperates(const RouterOptions& options);

// The authenticator of an API; without a tokens file it admits every caller. `flag` is for messages.
absl::StatusOr<std::unique_ptr<Authenticator>> MakeAuthenticator(std::string api, const std::string& tokens,
                                                                 absl::string_view flag);

// Step reports, and what a worker announces after a restart: held requests with their undelivered tokens.
inline constexpr int kMaxWorkerMessageBytes = 16 << 20;
inline constexpr int kMaxAdminMessageBytes = 64 << 10;

// Bound of a client's message, by its prompt and tokens.
int MaxClientMessageBytes(const RequestLimits& limits);

}  // namespace bfio::router
