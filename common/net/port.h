// A listening port of a gRPC server: bounded connections, memory and first messages. The common settings of
// every port. Threads: one.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/net/authenticator.h"
#include "common/net/connection_listener.h"
#include "common/net/first_messages.h"
#include "common/net/tls.h"

namespace bfio {

// Limits the calls that receive their first message at the same time to as many as fit in 64 MiB.
FirstMessages::Limits MessageLimits(int max_message_bytes);

struct PortSpec {
  // HOST:PORT; port 0 picks a free one.
  std::string listen;
  TlsFiles tls;
  int max_message_bytes = 0;
  // Null: none.
  std::vector<grpc::Service*> services;
  // The authenticators of the APIs at this port: they notify it of authenticated callers on its connections.
  std::vector<Authenticator*> authenticators;
  // Those of the services.
  std::vector<FirstMessages*> messages;
  // The services count all messages that arrive (FirstMessages::Arrived), and those that do not are bounded.
  bool bounds_messages = false;
  // Calls that a connection may have at once; each takes gRPC 20 to 30 KB. A worker process has two for each
  // of its ranks, a gateway those of all its tenants.
  int max_streams = 640;
  // Bound of gRPC's memory. Beyond it gRPC ends idle connections, then streams, of any caller.
  size_t memory_bytes = size_t{512} << 20;
  // Server reflection receives messages of any caller, so leave it off where tokens are required.
  bool reflection = false;
};

struct Port {
  std::unique_ptr<grpc::Server> server;
  // Ends before the server.
  std::unique_ptr<ConnectionListener> listener;
  // As bound.
  std::string address;
};

// UNAVAILABLE when the port cannot be opened. INVALID_ARGUMENT for a malformed address.
absl::StatusOr<Port> OpenPort(const PortSpec& spec);

}  // namespace bfio
