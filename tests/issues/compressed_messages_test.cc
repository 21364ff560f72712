// A gzip message of 261 KB was inflated to 280 MiB before it was compared with the port's limit.
#include <gtest/gtest.h>

#include <string>

#include "tests/testing/cluster.h"
#include "tests/testing/gateway_calls.h"

namespace bfio::testing {
namespace {

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
      const grpc::Status status =
          RawCall(grpc::CreateChannel(port.address, grpc::InsecureChannelCredentials()), port.method,
                  std::string(1 << 20, '\0'), 1, algorithm)
              .second;
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED)
          << port.method << ": " << status.error_message();
    }
  }
  cluster.StopCleanly();
}

}  // namespace
}  // namespace bfio::testing
