#include "router/requests/tenants.h"

#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "router/requests/tenant_totals.h"

namespace bfio::router {
namespace {

TEST(Tenants, NamesKeepTheirNumbersAndLateNamesShareOne) {
  Tenants tenants({});
  EXPECT_EQ(tenants.Number(""), 0u);
  for (uint32_t i = 1; i <= Tenants::kMaxTenants; ++i) EXPECT_EQ(tenants.Number(absl::StrCat(i)), i);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(tenants.Number(absl::StrCat("late", i)), Tenants::kMaxTenants + 1);
  EXPECT_EQ(tenants.Number("1"), 1u);
}

TEST(Tenants, ABareResumeHasNoPriority) {
  const Tenants tenants(*ParseTenantLimits("batch:priority=-20"));
  ClientRequest request{.request_id = "a", .tenant = "batch", .resume_from = 3};
  EXPECT_TRUE(tenants.Prepare(request).ok());
  // With a prompt it may start again.
  request.prompt_tokens = 10;
  EXPECT_TRUE(absl::IsInvalidArgument(tenants.Prepare(request)));
  request.priority = -20;
  EXPECT_TRUE(tenants.Prepare(request).ok());
}

TEST(Tenants, RequestsWithoutAnObjectiveGetTheirTenants) {
  const Tenants tenants(*ParseTenantLimits("acme:ttft=0.5;free:rps=1;*:ttft=2"));
  const auto objective = [&](const std::string& tenant, std::optional<absl::Duration> own) {
    ClientRequest request{.request_id = "a", .tenant = tenant, .prompt_tokens = 1, .ttft_objective = own};
    EXPECT_TRUE(tenants.Prepare(request).ok());
    return request.ttft_objective;
  };
  EXPECT_EQ(objective("acme", std::nullopt), absl::Seconds(0.5));
  EXPECT_EQ(objective("acme", absl::Seconds(3)), absl::Seconds(3));
  EXPECT_EQ(objective("anybody", std::nullopt), absl::Seconds(2));
  EXPECT_EQ(objective("free", std::nullopt), std::nullopt) << "its entry has none";
}

// Otherwise the tenant could not use protocols without priorities at all.
TEST(Tenants, ADefaultPriorityIsLoweredToTheTenantsLimit) {
  const Tenants tenants(*ParseTenantLimits("batch:priority=-20;acme:priority=10"));
  const auto priority = [&](const std::string& tenant, bool unset) {
    ClientRequest request{.request_id = "a", .tenant = tenant, .prompt_tokens = 1, .priority_unset = unset};
    EXPECT_EQ(tenants.Prepare(request).ok(), unset || tenant != "batch");
    return request.priority;
  };
  EXPECT_EQ(priority("batch", /*unset=*/true), -20);
  EXPECT_EQ(priority("acme", true), 0);
  EXPECT_EQ(priority("free", true), 0);
  EXPECT_EQ(priority("batch", /*unset=*/false), 0) << "it is refused as it is";
}

// Two series with the same name would break a metrics scrape, and a flood of names must not enlarge it.
TEST(TenantTotals, LateNamesAndATenantNamedOtherShareOther) {
  Tenants tenants({});
  TenantTotals& totals = tenants.totals();
  const auto request = [&](const std::string& name) {
    const uint32_t number = tenants.Number(name);
    totals.OnAccepted(number, name, 10);
    totals.OnTokens(number, name, 2);
    totals.OnTokens(number, name, 1);
    totals.OnCompleted(number, name);
  };
  request("");
  request("other");
  for (int i = 0; i < 500; ++i) request(absl::StrCat("t", i));
  request("t3");
  const std::vector<TenantTotal> all = totals.Fill();
  std::set<std::string> names;
  int64_t accepted = 0, tokens = 0, others = 0;
  for (const TenantTotal& tenant : all) {
    EXPECT_TRUE(names.insert(tenant.tenant).second) << tenant.tenant << " twice";
    accepted += tenant.accepted;
    tokens += tenant.generated_tokens;
    EXPECT_EQ(tenant.prompt_tokens, 10 * tenant.accepted);
    EXPECT_EQ(tenant.completed, tenant.accepted);
    if (tenant.tenant == "other") others = tenant.accepted;
    if (tenant.tenant == "t3") {
      EXPECT_EQ(tenant.accepted, 2);
    }
  }
  EXPECT_EQ(all.size(), 65u) << "no tenant, 63 names beside the one that is called other, and other";
  EXPECT_EQ(accepted, 503);
  EXPECT_EQ(tokens, 3 * accepted);
  EXPECT_EQ(others, 1 + 500 - 63);
}

}  // namespace
}  // namespace bfio::router
