#include "router/requests/resume_rights.h"

#include <gtest/gtest.h>

namespace bfio::router {
namespace {

ClientRequest Sent() {
  ClientRequest request;
  request.tenant = "acme";
  request.resume_token = "secret";
  return request;
}

TEST(MayResume, AsksForTenantAndSecret) {
  const ClientRequest sent = Sent();
  ClientRequest resume = sent;
  EXPECT_TRUE(MayResume(sent, resume));
  resume.tenant = "acm";
  EXPECT_FALSE(MayResume(sent, resume));
  resume = sent;
  resume.resume_token = "Secret";
  EXPECT_FALSE(MayResume(sent, resume));
  resume.resume_token.clear();
  EXPECT_FALSE(MayResume(sent, resume));
}

TEST(MayAbort, AsksForTheSecretAndForTheTenantOfAnAuthenticatedCaller) {
  const ClientRequest sent = Sent();
  EXPECT_FALSE(MayAbort(sent, "", std::nullopt)) << "its secret is not repeated";
  EXPECT_TRUE(MayAbort(sent, "secret", std::nullopt)) << "callers are not authenticated here";
  EXPECT_TRUE(MayAbort(sent, "secret", "acme"));
  EXPECT_FALSE(MayAbort(sent, "secret", "acm"));
  EXPECT_FALSE(MayAbort(sent, "Secret", "acme"));
  EXPECT_FALSE(MayAbort(ClientRequest(), "secret", std::nullopt)) << "it was sent without one";
}

TEST(SeedOfName, IsTheSameInEveryRoutersLife) {
  // A request that is started again by the next version of the router generates the same tokens.
  EXPECT_EQ(SeedOfName("r1"), SeedOfName(std::string("r") + "1"));
  EXPECT_NE(SeedOfName("r1"), SeedOfName("r2"));
  EXPECT_NE(SeedOfName(""), SeedOfName("r"));
}

}  // namespace
}  // namespace bfio::router
