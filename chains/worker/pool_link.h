// A server's stream to the router's ChainPool. One Join stream at a time; messages are passed to the owner's
// sinks. The owner opens it again after a loss. Threads: Open, Send and Close from the owner's thread; a
// reader thread per stream calls the sinks.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "bfio/v1/pipeline.grpc.pb.h"

namespace bfio::worker {

class PoolLink {
 public:
  struct Sinks {
    std::function<void(v1::PoolMessage)> on_message;
    // The stream has ended; called once per Open.
    std::function<void(const absl::Status&)> on_end;
  };

  PoolLink(std::shared_ptr<grpc::Channel> channel, Sinks sinks);
  ~PoolLink() { Close(); }

  // Opens a stream; true when the router is reached within `timeout`. REQUIRES: no stream is open.
  bool Open(absl::Duration timeout);
  // Blocks while the router does not read, as long as keepalive keeps the connection. Messages to a stream
  // that has ended are lost; on_end has been or will be called.
  void Send(const v1::ServerMessage& message);
  // Ends the stream and waits for its reader.
  void Close();

 private:
  using Stream = grpc::ClientReaderWriter<v1::ServerMessage, v1::PoolMessage>;

  const std::shared_ptr<grpc::Channel> channel_;
  const Sinks sinks_;
  const std::unique_ptr<v1::ChainPool::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<Stream> stream_;
  std::thread reader_;
};

}  // namespace bfio::worker
