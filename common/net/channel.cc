#include "common/net/channel.h"

#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/event_queue.h"
#include "common/base/out_of_range.h"
#include "grpc/compression.h"
#include "grpc/grpc.h"
#include "grpcpp/create_channel.h"

namespace bfio {
namespace {

const int kKeepaliveTimeMs = static_cast<int>(absl::ToInt64Milliseconds(kKeepaliveTime));
const int kKeepaliveTimeoutMs = static_cast<int>(absl::ToInt64Milliseconds(kKeepaliveTimeout));
const int kServerKeepaliveTimeoutMs = static_cast<int>(absl::ToInt64Milliseconds(kServerKeepaliveTimeout));
// The smallest interval of clients' pings that the server accepts, in addition to data.
constexpr int kMinPingIntervalMs = 500;
// Of a call's headers, counted as HTTP/2 does: name, value and 32 bytes. Beyond it the call ends.
constexpr size_t kMaxHeaderBytes = 8 << 10;
// Of the headers in one HTTP/2 frame. Beyond it gRPC ends the connection, with the calls of others that share
// it. Above what Envoy passes on, 60 KiB in 100 headers.
constexpr int kMaxTransportHeaderBytes = 80 << 10;

}  // namespace

std::shared_ptr<grpc::Channel> NewChannel(const std::string& address, int index,
                                          std::shared_ptr<grpc::ChannelCredentials> credentials) {
  if (credentials == nullptr) credentials = grpc::InsecureChannelCredentials();
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // A plan contains the prompts of all requests it places; gRPC's default limit of 4 MiB would end the stream
  // on a large one. The router bounds prompts and slots.
  args.SetMaxReceiveMessageSize(-1);
  DisableCompression(args);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  // Cluster traffic must not use the proxy that http_proxy configures for external traffic.
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Channels with equal arguments share one connection; this argument, unknown to gRPC, makes them differ.
  args.SetInt("bfio.channel_index", index);
  return grpc::CreateCustomChannel(address, credentials, args);
}

void DisableCompression(grpc::ChannelArguments& args) {
  args.SetInt(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE);
  args.SetInt(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
}

std::shared_ptr<grpc::Channel> DestroyOnOwnThread(std::shared_ptr<grpc::Channel> channel) {
  // Queue and thread live as long as the process.
  static EventQueue* const last_owners = [] {
    auto* const queue = new EventQueue;
    std::thread([queue] {
      for (std::vector<EventQueue::Event> events;; events.clear()) {
        queue->WaitAndTake(absl::InfiniteDuration(), events);
        for (EventQueue::Event& event : events) std::move(event)();
      }
    }).detach();
    return queue;
  }();
  grpc::Channel* const raw = channel.get();
  return {raw, [channel = std::move(channel)](grpc::Channel*) mutable {
            last_owners->Post([channel = std::move(channel)]() mutable { channel.reset(); });
          }};
}

void ConfigureServer(grpc::ServerBuilder& builder, int max_streams) {
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kServerKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, max_streams);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxTransportHeaderBytes);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Keeps HTTP/2's initial windows of 64 KiB: with bandwidth probing, a caller could widen them.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE})
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
}

absl::Status CheckHeaders(const grpc::CallbackServerContext& context) {
  size_t bytes = context.ExperimentalGetAuthority().size();
  for (const auto& [name, value] : context.client_metadata()) bytes += name.size() + value.size() + 32;
  if (bytes <= kMaxHeaderBytes) return absl::OkStatus();
  return OutOfRange("the size of the call's headers", bytes,
                    absl::StrCat("at most ", kMaxHeaderBytes, " bytes"));
}

}  // namespace bfio
