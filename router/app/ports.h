// The router's listening ports: what each is protected with, and that it is enough.
//
// Purpose: three APIs with three kinds of callers, so three trusts: clients, workers, operators. Threads:
// one.
#ifndef BFIO_ROUTER_APP_PORTS_H_
#define BFIO_ROUTER_APP_PORTS_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/net/authenticator.h"
#include "common/net/connection_listener.h"
#include "common/net/first_messages.h"
#include "router/app/options.h"

namespace bfio::router {

// INVALID_ARGUMENT or NOT_FOUND for addresses that are none, for files that do not do, for a port that other
// machines reach unencrypted or unasked without options.insecure, and for workers that would come in at the
// clients' protected port.
absl::Status CheckPorts(const RouterOptions& options);

// Whether operators may act at the HTTP port as at the admin port: only where the admin port listens at that
// address, too. An HTTP port in a monitoring network of its own shows and does not operate.
bool HttpOperates(const RouterOptions& options);

// Of an API; without a tokens file one that admits every caller. `flag` is for messages.
absl::StatusOr<std::unique_ptr<Authenticator>> MakeAuthenticator(std::string api, const std::string& tokens,
                                                                 absl::string_view flag);

// Largest message a client may send: prompts are what is large.
int MaxClientMessageBytes(const RequestLimits& limits);
// Step reports, and what a worker announces after a restart: held requests with their undelivered tokens.
inline constexpr int kMaxWorkerMessageBytes = 16 << 20;
inline constexpr int kMaxAdminMessageBytes = 64 << 10;

// So many calls receive their first message at the same time that it takes 64 MiB at most.
FirstMessages::Limits MessageLimits(int max_message_bytes);

struct PortSpec {
  // HOST:PORT; port 0 picks a free one.
  std::string listen;
  TlsFiles tls;
  int max_message_bytes = 0;
  // Null: none.
  std::vector<grpc::Service*> services;
  // Of the APIs at this port: notified of authenticated callers on its connections.
  std::vector<Authenticator*> authenticators;
  // Beyond it gRPC ends idle connections, then streams, whosever they are: the last resort.
  size_t memory_bytes = size_t{512} << 20;
  // Server reflection receives messages of any caller: not where tokens are required.
  bool reflection = false;
};

struct Port {
  std::unique_ptr<grpc::Server> server;
  // Ends before the server.
  std::unique_ptr<ConnectionListener> listener;
  // As bound.
  std::string address;
};

// UNAVAILABLE when the port cannot be had. REQUIRES: CheckPorts was OK.
absl::StatusOr<Port> OpenPort(const PortSpec& spec);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_APP_PORTS_H_
