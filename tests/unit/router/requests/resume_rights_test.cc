#include "router/requests/resume_rights.h"

#include <gtest/gtest.h>

namespace bfio::router {
namespace {

ClientRequest Sent() {
  return {.tenant = "acme", .resume_token = "secret"};
}

TEST(MayResume, NeedsTheSecret) {
  const ClientRequest sent = Sent();
  ClientRequest resume = sent;
  EXPECT_TRUE(MayResume(sent, resume));
  resume.resume_token = "Secret";
  EXPECT_FALSE(MayResume(sent, resume));
  resume.resume_token.clear();
  EXPECT_FALSE(MayResume(sent, resume));
}

TEST(MayAbort, NeedsTheSecret) {
  const ClientRequest sent = Sent();
  EXPECT_FALSE(MayAbort(sent, "")) << "its secret is not repeated";
  EXPECT_TRUE(MayAbort(sent, "secret"));
  EXPECT_FALSE(MayAbort(sent, "Secret"));
  EXPECT_FALSE(MayAbort(ClientRequest(), "secret")) << "it was sent without one";
}

TEST(SeedOfName, IsTheSameAfterARestart) {
  // A request that is started again after an upgrade of the router must generate the same tokens.
  EXPECT_EQ(SeedOfName("r1"), SeedOfName(std::string("r") + "1"));
  EXPECT_NE(SeedOfName("r1"), SeedOfName("r2"));
  EXPECT_NE(SeedOfName(""), SeedOfName("r"));
}

}  // namespace
}  // namespace bfio::router
