#include <gmock/gmock.h>

#include "common/base/address.h"
#include "common/net/exposure.h"
#include "common/net/grpc_log.h"
#include "common/net/status.h"
#include "common/net/tls.h"
#include "google/rpc/error_details.pb.h"

namespace bfio {
namespace {

using ::testing::HasSubstr;

TEST(TargetTest, IsOneAddressOrSeveralNumericOnes) {
  EXPECT_EQ(ParseTarget("router:50051")->ToString(), "router:50051");
  EXPECT_EQ(ParseTarget("10.0.0.1:1,10.0.0.2:2")->ToString(), "ipv4:10.0.0.1:1,10.0.0.2:2");
  EXPECT_FALSE(ParseTarget("10.0.0.1:1,10.0.0.2:2", /*tls=*/true).ok());
  EXPECT_TRUE(ParseTarget("router:50051", /*tls=*/true).ok());
  EXPECT_TRUE(IsLoopback(*ParseTarget("127.0.0.1:1,127.0.0.2:2")));
  EXPECT_FALSE(IsLoopback(*ParseTarget("127.0.0.1:1,10.0.0.2:2")));
  for (const char* text : {"", ",", "10.0.0.1:1,", "a:1,b:2", "10.0.0.1:1,[::1]:2", "10.0.0.1:1 ,10.0.0.2:2",
                           "10.0.0:1,10.0.0.2:2"}) {
    EXPECT_EQ(ParseTarget(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(TlsFilesTest, AreReadByNameInAnyOrder) {
  const auto all = ParseTlsFiles("ca=/a=b.crt,cert=c,key=k");
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->ca, "/a=b.crt");
  EXPECT_EQ(all->cert, "c");
  EXPECT_EQ(all->key, "k");
  EXPECT_EQ(ParseTlsFiles("ca=x")->cert, "");
  for (const char* text : {"", "x", "ca", "ca=", "ca=a,", "ca=a,ca=b", "crt=a"}) {
    EXPECT_EQ(ParseTlsFiles(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(StatusTest, EveryCodeSurvivesTheRoundTrip) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), code == 0 ? "" : "why");
    const grpc::Status wire = ToGrpcStatus(status);
    EXPECT_EQ(static_cast<int>(wire.error_code()), code);
    EXPECT_EQ(wire.error_message(), code == 0 ? "" : "why");
    EXPECT_EQ(FromGrpcStatus(wire), status);
  }
  EXPECT_EQ(FromGrpcStatus(grpc::Status(static_cast<grpc::StatusCode>(17), "x")).code(),
            absl::StatusCode::kUnknown);
  EXPECT_EQ(StatusCodeName(grpc::StatusCode::OK), "OK");
  EXPECT_EQ(StatusCodeName(grpc::StatusCode::RESOURCE_EXHAUSTED), "RESOURCE_EXHAUSTED");
  EXPECT_EQ(StatusCodeName(static_cast<grpc::StatusCode>(17)), "UNKNOWN");
}

TEST(StatusTest, TheRetryDelaySurvivesTheRoundTrip) {
  absl::Status status = absl::ResourceExhaustedError("full");
  EXPECT_EQ(GetRetryDelay(status), std::nullopt);
  EXPECT_EQ(GetRetryDelay(absl::OkStatus()), std::nullopt);
  EXPECT_TRUE(ToGrpcStatus(status).error_details().empty());
  const absl::Duration delay = absl::Seconds(3) + absl::Nanoseconds(1);
  SetRetryDelay(status, delay);
  const grpc::Status wire = ToGrpcStatus(status);
  EXPECT_EQ(GetRetryDelay(wire), delay);
  EXPECT_EQ(GetRetryDelay(FromGrpcStatus(wire)), delay);

  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(wire.error_details()));
  EXPECT_EQ(details.code(), 8);
  EXPECT_EQ(details.message(), "full");
  ASSERT_EQ(details.details_size(), 1);
  google::rpc::RetryInfo info;
  ASSERT_TRUE(details.details(0).UnpackTo(&info)) << "other clients unpack it by its type";
}

TEST(StatusTest, UnknownAndBrokenDetailsAreIgnored) {
  EXPECT_EQ(GetRetryDelay(grpc::Status(grpc::StatusCode::UNAVAILABLE, "x", "\xff\xff garbage")),
            std::nullopt);
  absl::Status status = absl::UnavailableError("x");
  status.SetPayload("inside", absl::Cord("secret"));
  EXPECT_TRUE(ToGrpcStatus(status).error_details().empty());
  SetRetryDelay(status, absl::ZeroDuration());
  EXPECT_EQ(GetRetryDelay(status), absl::ZeroDuration());
  for (const bool parses : {true, false}) {
    google::rpc::RetryInfo negative;
    negative.mutable_retry_delay()->set_seconds(-1);
    google::rpc::Status details;
    details.add_details()->PackFrom(negative);
    if (!parses) details.mutable_details(0)->set_value("\xff");
    const grpc::Status wire(grpc::StatusCode::UNAVAILABLE, "x", details.SerializeAsString());
    EXPECT_EQ(GetRetryDelay(wire), std::nullopt);
    EXPECT_EQ(FromGrpcStatus(wire), absl::UnavailableError("x"));
  }
}

PortSetup PortWith(bool encrypted, bool asks) {
  return {"listen", "client_tls", "--client_tls=ca=FILE or --client_tokens", encrypted, asks};
}

TEST(Exposure, RecognisesLoopbackAddresses) {
  for (const char* host : {"127.0.0.1", "127.8.9.10", "::1", "localhost", "LOCALHOST"}) {
    EXPECT_TRUE(IsLoopback({host, 1})) << host;
  }
  for (const char* host :
       {"0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "router", "127.0.0.1.example.org", "localhost.example"}) {
    EXPECT_FALSE(IsLoopback({host, 1})) << host;
  }
}

TEST(Exposure, RemoteAccessNeedsEncryptionAndAuthentication) {
  for (const bool encrypted : {false, true}) {
    for (const bool asks : {false, true}) {
      EXPECT_TRUE(CheckExposure({"127.0.0.1", 1}, PortWith(encrypted, asks)).ok());
      EXPECT_EQ(CheckExposure({"0.0.0.0", 1}, PortWith(encrypted, asks)).ok(), encrypted && asks);
    }
  }
  EXPECT_THAT(CheckExposure({"0.0.0.0", 1}, PortWith(false, true)).message(),
              HasSubstr("give --client_tls=cert=FILE,key=FILE, or --insecure"));
  EXPECT_THAT(CheckExposure({"0.0.0.0", 1}, PortWith(true, false)).message(),
              HasSubstr("give --client_tls=ca=FILE or --client_tokens, or --insecure"));
}

TEST(Exposure, AnotherPortAnswersAtAnAddressOrNot) {
  for (const char* listening : {"10.0.0.1", "0.0.0.0", "::"})
    EXPECT_TRUE(AnswersAt({listening, 1}, {"10.0.0.1", 2})) << listening;
  EXPECT_TRUE(AnswersAt({"localhost", 1}, {"127.0.0.1", 2}));
  EXPECT_FALSE(AnswersAt({"127.0.0.1", 1}, {"0.0.0.0", 2}));
  EXPECT_FALSE(AnswersAt({"10.0.0.1", 1}, {"10.0.1.1", 2})) << "another network";
}

// The texts are those of gRPC 1.51.
TEST(GrpcLog, FailedHandshakesGiveTheirReason) {
  EXPECT_EQ(
      TlsRefusal("Handshake failed with fatal error SSL_ERROR_SSL: error:0A000086:SSL routines::certificate "
                 "verify failed."),
      "certificate verify failed");
  EXPECT_EQ(
      TlsRefusal("Handshake failed with fatal error SSL_ERROR_SSL: error:0A0000C7:SSL routines::peer did not "
                 "return a certificate."),
      "peer did not return a certificate");
  EXPECT_FALSE(TlsRefusal("TCP_USER_TIMEOUT is available.").has_value());
}

TEST(GrpcLog, UnusableCertificatesAreRecognised) {
  EXPECT_TRUE(IsUnusableCertificate("Handshaker factory creation failed with TSI_INVALID_ARGUMENT."));
  EXPECT_FALSE(IsUnusableCertificate("Handshake failed with fatal error"));
}

}  // namespace
}  // namespace bfio
