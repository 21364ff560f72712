// Transport settings of gRPC channels and servers, for every bfio program. One place for the settings that
// both ends must agree on. The loss of a peer's host is detected within kKeepaliveTime + kKeepaliveTimeout
// (the death of a process on a live host at once, by its closed connection). gRPC's defaults would take two
// hours, and with keepalive configured only on the client, its server would answer such frequent pings with
// GOAWAY. Encryption is set by the credentials (common/net/tls.h). Threads: any.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/channel_arguments.h"

namespace bfio {

inline constexpr absl::Duration kKeepaliveTime = absl::Seconds(2);
inline constexpr absl::Duration kKeepaliveTimeout = absl::Milliseconds(1500);
// A server waits longer, and pings only connections with calls: a client of the blocking API answers pings
// only during a call, so an idle client would be disconnected, and fail at its next request.
inline constexpr absl::Duration kServerKeepaliveTimeout = absl::Seconds(10);

// A channel to "HOST:PORT", or to the result of Target::ToString. Channels with the same `index` share a
// connection; different ones have their own, which helps if the lock or window of one connection is the
// bottleneck. Connects lazily and reconnects after a loss (100 ms to 2 s). Plain text if `credentials` is
// null; channels should share their credentials.
std::shared_ptr<grpc::Channel> NewChannel(const std::string& address, int index = 0,
                                          std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr);

// The same channel, which is destroyed on a thread of this module when the last owner of the result is gone.
// For channels whose calls outlive their clients: gRPC's threads, which run the callbacks of calls, must not
// destroy the last channel, because that waits for them. A call must own the result until its context is
// destroyed.
std::shared_ptr<grpc::Channel> DestroyOnOwnThread(std::shared_ptr<grpc::Channel> channel);

// Calls of the channel send no compressed messages, ask for none and reject them: gRPC inflates a message
// before it compares its size with the limit.
void DisableCompression(grpc::ChannelArguments& args);

// Sets keepalive, no limit on pings, no compressed messages (UNIMPLEMENTED, for the reason above), at most
// `max_streams` streams per connection, and exclusive use of the port (a second server on one port fails to
// start). The caller adds listening ports and services.
void ConfigureServer(grpc::ServerBuilder& builder, int max_streams = 16384);

// INVALID_ARGUMENT for a call with more than 8 KiB of headers. gRPC's own limit, which ends the connection,
// is far above it.
absl::Status CheckHeaders(const grpc::CallbackServerContext& context);

}  // namespace bfio
