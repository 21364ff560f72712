// A gRPC service on a loopback port, and a channel to it with small flow-control windows.
//
// Purpose: tests of one service without the programs. Threads: any.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"

namespace bfio::testing {

class LoopbackServer {
 public:
  // Larger than any window of the channel: writing a message of this size ends only when the client reads.
  static constexpr size_t kBig = 1 << 20;

  // `service` outlives the server.
  explicit LoopbackServer(grpc::Service* service) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(service);
    server_ = builder.BuildAndStart();
    grpc::ChannelArguments small_windows;
    small_windows.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    small_windows.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65535);
    channel_ = grpc::CreateCustomChannel(address(), grpc::InsecureChannelCredentials(), small_windows);
  }
  LoopbackServer(const LoopbackServer&) = delete;
  LoopbackServer& operator=(const LoopbackServer&) = delete;
  ~LoopbackServer() { server_->Shutdown(); }

  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace bfio::testing
