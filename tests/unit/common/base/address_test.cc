#include "common/base/address.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bfio {
namespace {

using ::testing::HasSubstr;

TEST(AddressTest, AcceptsHostNamesNumbersAndBrackets) {
  for (const char* text :
       {"localhost:50051", "10.0.0.1:1", "router-0.bfio_ns.svc:65535", "[::1]:80", "[fe80::1%eth0]:9"}) {
    const auto address = ParseAddress(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->ToString(), text);
  }
  EXPECT_EQ(ParseAddress("[::1]:80")->host, "::1");
  EXPECT_EQ(ParseAddress("0.0.0.0:0", true)->port, 0);
}

TEST(AddressTest, AnythingElseIsRefusedInOneLine) {
  for (const char* text : {"",           ":",          "host",    "host:",          ":80",     "host:0",
                           "host:65536", "host:99999", "host:-1", "host:+1",        "host: 1", "host:80x",
                           "::1:80",     "[::1:80",    "[::1]",   "http://host:80", "a b:1",   "host:000080",
                           "[host]:80",  "[]:1"}) {
    const auto status = ParseAddress(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("HOST:PORT is expected")) << text;
  }
}

}  // namespace
}  // namespace bfio
