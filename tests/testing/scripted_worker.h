// A client of WorkerLink that sends the messages that a test chooses, to a real router.
//
// Threads: one.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "bfio/v1/worker.grpc.pb.h"

namespace bfio::testing {

// The model digest of bfio_worker --engine=sim (tests/unit/worker/link/engines_test.cc).
inline constexpr char kSimModel[] = "9b3226f06100ec213aca23752203444ad9e334f537ee6767f3bae4d44e90894e";

class ScriptedWorker {
 public:
  ScriptedWorker(const std::string& address, const std::string& id,
                 const grpc::ChannelArguments& args = grpc::ChannelArguments())
      : stub_(v1::WorkerLink::NewStub(
            grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args))) {
    stream_ = stub_->Attach(&context_);
    v1::Hello& hello = *hello_.mutable_hello();
    hello.set_worker_id(id);
    hello.set_slots(2);
    hello.set_kv_tokens(1000);
    hello.set_max_sequence_tokens(1000);
    hello.set_engine("scripted");
    hello.set_barrier("star");
    hello.set_communicator_offer("127.0.0.1:1");
    hello.set_model(kSimModel);
  }
  ~ScriptedWorker() { context_.TryCancel(); }

  v1::Hello& hello() { return *hello_.mutable_hello(); }
  void SayHello() { stream_->Write(hello_); }
  bool Send(const v1::WorkerMessage& message) { return stream_->Write(message); }

  // Reads until a message of this kind; false when the stream ends first.
  bool ReadUntil(v1::RouterMessage::MessageCase kind, v1::RouterMessage& message) {
    while (stream_->Read(&message)) {
      if (message.message_case() == kind) return true;
    }
    return false;
  }

  // Exchanges Hello, Epoch and EpochReady.
  bool Join() {
    SayHello();
    return Rejoin();
  }
  bool Rejoin() {
    v1::RouterMessage message;
    if (!ReadUntil(v1::RouterMessage::kEpoch, message)) return false;
    v1::WorkerMessage ready;
    ready.mutable_epoch_ready()->set_epoch(message.epoch().epoch());
    ready.mutable_epoch_ready()->set_communicator_offer("127.0.0.1:1");
    return Send(ready);
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::WorkerLink::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::RouterMessage>> stream_;
  v1::WorkerMessage hello_;
};

}  // namespace bfio::testing
