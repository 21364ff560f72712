// Calls of several tenants may share a connection, behind a proxy or a gateway: what one of them sends ended
// them all, or took a thread each. A gzip message of 261 KB was inflated to 280 MiB before it was compared
// with the port's limit.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/cluster.h"
#include "tests/testing/gateway_calls.h"

namespace bfio::testing {
namespace {

std::shared_ptr<grpc::Channel> OwnConnection(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

std::unique_ptr<grpc::ClientContext> WithDeadline() {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  return context;
}

TEST(SharedConnection, LargeHeadersEndOnlyTheirCall) {
  Cluster cluster({.worker_processes = 1, .worker_flags = {"--c=0.005"}});
  ASSERT_TRUE(cluster.ok());
  const auto channel = OwnConnection(cluster.address()), admin = OwnConnection(cluster.admin_address());
  v1::GenerateRequest request;
  request.set_prompt_length(10);
  request.set_max_new_tokens(8000);
  const auto other = WithDeadline();
  const auto stream = v1::Inference::NewStub(channel)->Generate(other.get(), request);
  v1::GenerateResponse token;
  ASSERT_TRUE(stream->Read(&token));
  const auto watching = WithDeadline();
  const auto steps = v1::Admin::NewStub(admin)->WatchSteps(watching.get(), {});
  steps->WaitForInitialMetadata();
  for (const int bytes : {100, 7000, 9000, 20000, 60000}) {
    for (const int each : {bytes, 90}) {
      const auto expected = bytes < 8000 ? grpc::StatusCode::OK : grpc::StatusCode::INVALID_ARGUMENT;
      const auto add_headers = [&](grpc::ClientContext& context) {
        for (int sent = 0; sent < bytes; sent += each + 32)
          context.AddMetadata(absl::StrCat("x-", sent), std::string(static_cast<size_t>(each), 'a'));
      };
      const auto context = WithDeadline(), at_admin = WithDeadline();
      add_headers(*context);
      add_headers(*at_admin);
      v1::GetLoadsResponse loads;
      grpc::Status status = v1::Inference::NewStub(channel)->GetLoads(context.get(), {}, &loads);
      EXPECT_EQ(status.error_code(), expected) << bytes << " " << each << status.error_message();
      v1::ClusterState state;
      status = v1::Admin::NewStub(admin)->GetClusterState(at_admin.get(), {}, &state);
      EXPECT_EQ(status.error_code(), expected) << bytes << " " << each << status.error_message();
      ASSERT_TRUE(stream->Read(&token)) << bytes << " " << each << stream->Finish().error_message();
      EXPECT_EQ(channel->GetState(false), GRPC_CHANNEL_READY);
      EXPECT_EQ(admin->GetState(false), GRPC_CHANNEL_READY);
    }
  }
  other->TryCancel();
  watching->TryCancel();
  cluster.StopCleanly();
}

int ThreadsOf(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  int threads = 0;
  for (std::string word; status >> word && word != "Threads:";) continue;
  status >> threads;
  return threads;
}

TEST(SharedConnection, OpenReflectionStreamsTakeFewThreads) {
  Cluster cluster({.worker_processes = 1});
  ASSERT_TRUE(cluster.ok());
  const int before = ThreadsOf(cluster.router().pid());
  for (const std::string& address : {cluster.address(), cluster.admin_address()}) {
    const auto channel = OwnConnection(address);
    grpc::GenericStub stub(channel);
    std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
    std::vector<std::unique_ptr<grpc::GenericClientAsyncReaderWriter>> calls;
    grpc::CompletionQueue queue;
    void* tag = nullptr;
    bool ok = false;
    for (int i = 0; i < 200; ++i) {
      contexts.push_back(WithDeadline());
      calls.push_back(stub.PrepareCall(
          contexts.back().get(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue));
      calls.back()->StartCall(nullptr);
      ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
    }
    // Another call of the connection is served; the streams before it have begun.
    const auto context = WithDeadline();
    v1::ClusterState state;
    if (address == cluster.admin_address()) {
      EXPECT_TRUE(v1::Admin::NewStub(channel)->GetClusterState(context.get(), {}, &state).ok());
    }
    EXPECT_LT(ThreadsOf(cluster.router().pid()) - before, 50);
    for (const auto& each : contexts) each->TryCancel();
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) continue;
  }
  cluster.StopCleanly();
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
