#include "common/net/exposure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bfio {
namespace {

using ::testing::HasSubstr;

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

}  // namespace
}  // namespace bfio
