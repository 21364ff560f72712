#include "common/net/health_service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/testing/loopback_server.h"

namespace bfio {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr char kToken[] = "probe-s3cr3t-probe-s3cr3t";

class HealthServiceTest : public ::testing::TestWithParam<bool> {
 protected:
  HealthServiceTest() {
    std::unique_ptr<TokenFile> tokens;
    if (GetParam()) {
      const std::string path = ::testing::TempDir() + "/health_tokens";
      std::ofstream(path) << "probe token:" << kToken << "\n";
      tokens = *TokenFile::Open(path);
    }
    authenticator_ = std::make_unique<Authenticator>("test", std::move(tokens));
    health_ =
        std::make_unique<HealthService>(std::vector<std::string>{"first", "second"}, authenticator_.get());
    server_ = std::make_unique<testing::LoopbackServer>(health_.get());
    stub_ = grpc::health::v1::Health::NewStub(server_->channel());
  }
  ~HealthServiceTest() override { server_ = nullptr; }

  // The health status of a service, or the error of the call, for a caller with or without a token.
  std::string Check(const std::string& service, bool token) {
    grpc::ClientContext context;
    if (token) context.AddMetadata("authorization", std::string("Bearer ") + kToken);
    HealthCheckRequest request;
    request.set_service(service);
    HealthCheckResponse response;
    const grpc::Status status = stub_->Check(&context, request, &response);
    return status.ok() ? HealthCheckResponse::ServingStatus_Name(response.status()) : status.error_message();
  }

  struct Watching {
    // The next status that arrives; empty after the end.
    std::string Next() {
      HealthCheckResponse response;
      return reader->Read(&response) ? HealthCheckResponse::ServingStatus_Name(response.status()) : "";
    }
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<HealthCheckResponse>> reader;
  };
  std::unique_ptr<Watching> Watch(const std::string& service, bool token) {
    auto watching = std::make_unique<Watching>();
    if (token) watching->context.AddMetadata("authorization", std::string("Bearer ") + kToken);
    HealthCheckRequest request;
    request.set_service(service);
    watching->reader = stub_->Watch(&watching->context, request);
    return watching;
  }

  std::unique_ptr<Authenticator> authenticator_;
  std::unique_ptr<HealthService> health_;
  std::unique_ptr<testing::LoopbackServer> server_;
  std::unique_ptr<grpc::health::v1::Health::Stub> stub_;
};

INSTANTIATE_TEST_SUITE_P(Tokens, HealthServiceTest, ::testing::Bool());
class HealthServiceWithTokensTest : public HealthServiceTest {};
INSTANTIATE_TEST_SUITE_P(Tokens, HealthServiceWithTokensTest, ::testing::Values(true));

TEST_P(HealthServiceTest, AuthenticatedCallersGetEachServicesStatus) {
  EXPECT_EQ(Check("", true), "SERVING");
  EXPECT_EQ(Check("first", true), "NOT_SERVING");
  health_->SetServing("second", true);
  EXPECT_EQ(Check("second", true), "SERVING");
  EXPECT_EQ(Check("third", true), "no such service");
  health_->Close();
  EXPECT_EQ(Check("", true), "NOT_SERVING");
  EXPECT_EQ(Check("second", true), "NOT_SERVING");
}

TEST_P(HealthServiceWithTokensTest, UnauthenticatedCallersGetTheFirstServicesStatus) {
  EXPECT_EQ(Check("", false), "NOT_SERVING");
  EXPECT_EQ(Check("third", false), "NOT_SERVING");
  health_->SetServing("first", true);
  EXPECT_EQ(Check("second", false), "SERVING");
  EXPECT_EQ(authenticator_->refused(), 0u) << "a probe is no failed login";
}

TEST_P(HealthServiceTest, AWatchReceivesChanges) {
  const auto watch = Watch("second", GetParam());
  EXPECT_EQ(watch->Next(), "NOT_SERVING");
  health_->SetServing("first", true);
  health_->SetServing("second", true);
  EXPECT_EQ(watch->Next(), "SERVING");
  watch->context.TryCancel();
  EXPECT_EQ(watch->Next(), "");
}

TEST_P(HealthServiceWithTokensTest, WatchesWithoutATokenTakeNoPlaceOfOthers) {
  std::vector<std::unique_ptr<Watching>> open;
  for (size_t i = 0; i < HealthService::kMaxWatches + 6; ++i) {
    open.push_back(Watch("", /*token=*/i == HealthService::kMaxWatches + 5));
    EXPECT_NE(open.back()->Next(), "") << i;
  }
  EXPECT_EQ(open.front()->Next(), "") << "the oldest of its address has made room";
  EXPECT_EQ(open.front()->reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  for (const size_t last : {1, 2}) open[open.size() - last]->context.TryCancel();
}

}  // namespace
}  // namespace bfio
