// gRPC channels and servers as every bfio program sets them up.
//
// Purpose: one place for the transport settings both ends must agree on. A peer whose host vanished is
// noticed in kKeepaliveTime + kKeepaliveTimeout (one that died on a live host at once, by its closed
// connection); gRPC's defaults would take two hours, and with keepalive on the client alone its server would
// answer pings this frequent with GOAWAY. Whether a link is encrypted is its credentials' matter
// (common/net/tls.h). Threads: any.
#ifndef BFIO_COMMON_NET_CHANNEL_H_
#define BFIO_COMMON_NET_CHANNEL_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/server_builder.h"

namespace bfio {

inline constexpr absl::Duration kKeepaliveTime = absl::Seconds(2);
inline constexpr absl::Duration kKeepaliveTimeout = absl::Milliseconds(1500);
// A server is more patient, and pings only connections with calls: a client on the blocking API answers pings
// only while it is inside a call, so an idle one would be cut off and find out at its next request.
inline constexpr absl::Duration kServerKeepaliveTimeout = absl::Seconds(10);

// A channel to "HOST:PORT", or to what Target::ToString says. Channels with the same `index` share a
// connection; different ones have their own, which helps when one connection's lock or window is the
// bottleneck. Connects lazily and again after a loss (100 ms to 2 s). Plain text without `credentials`;
// channels should share theirs.
std::shared_ptr<grpc::Channel> NewChannel(const std::string& address, int index = 0,
                                          std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr);

// Keepalive, no limit on pings, at most `max_streams` streams per connection, and no sharing of the port with
// another server (the second of two routers on one port fails to start). A call's headers may have 8 KiB.
// Listening ports and services are the caller's.
void ConfigureServer(grpc::ServerBuilder& builder, int max_streams = 16384);

}  // namespace bfio

#endif  // BFIO_COMMON_NET_CHANNEL_H_
