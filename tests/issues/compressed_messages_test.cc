// A gzip message of 261 KB was inflated to 280 MiB before it was compared with the port's limit.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/testing/cluster.h"

namespace bfio::testing {
namespace {

// The status of a call with a compressed message of zeros.
grpc::Status Send(const std::string& address, const std::string& method,
                  grpc_compression_algorithm algorithm) {
  grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_compression_algorithm(algorithm);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, method, &queue);
  const auto next = [&] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  next();
  const grpc::Slice zeros(std::string(1 << 20, '\0'));
  call->WriteLast(grpc::ByteBuffer(&zeros, 1), grpc::WriteOptions(), nullptr);
  next();
  grpc::Status status;
  call->Finish(&status, nullptr);
  next();
  queue.Shutdown();
  return status;
}

TEST(CompressedMessages, AreRefusedByEveryService) {
  Cluster cluster({.worker_processes = 1});
  ASSERT_TRUE(cluster.ok());
  const struct {
    std::string address, method;
  } ports[] = {{cluster.address(), "/bfio.v1.Inference/Generate"},
               {cluster.admin_address(), "/bfio.v1.Admin/DrainWorker"},
               {cluster.address(), "/bfio.v1.WorkerLink/Attach"}};
  for (const auto& port : ports) {
    for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
      const grpc::Status status = Send(port.address, port.method, algorithm);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED)
          << port.method << ": " << status.error_message();
    }
  }
  cluster.StopCleanly();
}

}  // namespace
}  // namespace bfio::testing
