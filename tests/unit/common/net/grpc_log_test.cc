#include "common/net/grpc_log.h"

#include <gtest/gtest.h>

namespace bfio {
namespace {

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
