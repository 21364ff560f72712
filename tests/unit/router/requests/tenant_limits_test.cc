// Tenants: their limits, numbers and totals.
#include "router/requests/tenant_limits.h"

#include <gmock/gmock.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/retry_delay.h"
#include "common/base/rng.h"
#include "router/requests/tenant_totals.h"
#include "router/requests/tenants.h"

namespace bfio::router {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

TEST(ParseTenantLimits, ReadsEveryLimit) {
  const auto limits = ParseTenantLimits("acme:rps=2.5,tps=1e4,concurrent=8;*:concurrent=1;:rps=1");
  ASSERT_TRUE(limits.ok()) << limits.status();
  ASSERT_THAT(*limits, SizeIs(3));
  EXPECT_EQ(limits->at("acme").requests_per_s, 2.5);
  EXPECT_EQ(limits->at("acme").tokens_per_s, 1e4);
  EXPECT_EQ(limits->at("acme").concurrent, 8);
  EXPECT_EQ(limits->at("*").requests_per_s, 0);
  EXPECT_EQ(limits->at("").requests_per_s, 1) << "the default tenant";
  EXPECT_TRUE(ParseTenantLimits("")->empty());
  // A tenant's name may contain colons: the last one separates the limits.
  EXPECT_EQ(ParseTenantLimits("org:team:rps=1")->count("org:team"), 1u);
}

TEST(ParseTenantLimits, NamesTheInvalidPart) {
  for (const std::string text :
       {"acme", "acme:", "acme:rps", "acme:rps=0", "acme:rps=-1", "acme:rps=nan", "acme:qps=1",
        "acme:rps=1,,tps=1", "acme:rps=1;acme:tps=1", "acme:priority=", "acme:priority=101",
        "acme:priority=-101", "acme:priority=1.5", "acme:ttft=0", "acme:ttft=3601"}) {
    const auto limits = ParseTenantLimits(text);
    EXPECT_TRUE(absl::IsInvalidArgument(limits.status())) << text;
    EXPECT_THAT(std::string(limits.status().message()), HasSubstr("acme")) << text;
  }
}

TEST(TokenBucket, NeverPassesMoreThanRateTimesTimePlusDepth) {
  Rng rng(1);
  for (int round = 0; round < 50; ++round) {
    const double rate = 1 + rng.Uniform() * 100, depth = 1 + rng.Uniform() * 50;
    TokenBucket bucket(rate, depth, kStart);
    double taken = 0;
    absl::Time now = kStart;
    for (int i = 0; i < 500; ++i) {
      now += absl::Seconds(rng.Uniform() * 0.05);
      const double amount = rng.Uniform() * depth;
      const absl::Duration wait = bucket.Wait(amount, now);
      if (wait > absl::ZeroDuration()) {
        // Waiting for the returned time suffices.
        TokenBucket later = bucket;
        ASSERT_LE(later.Wait(amount, now + wait + absl::Nanoseconds(10)), absl::Nanoseconds(10));
        continue;
      }
      bucket.Take(amount);
      taken += amount;
      ASSERT_LE(taken, rate * absl::ToDoubleSeconds(now - kStart) + depth + 1e-6);
    }
    EXPECT_GT(taken, 0);
  }
}

TEST(TenantLimiter, EachLimitRefusesWithARetryDelay) {
  TenantLimiter limiter(*ParseTenantLimits("r:rps=2;t:tps=100;c:concurrent=1"), Tenants::kMaxTenants);
  const auto refused = [&](const std::string& tenant, int64_t tokens, const std::string& part) {
    const auto again = limiter.Enter(tenant, tokens, kStart);
    EXPECT_TRUE(absl::IsResourceExhausted(again.status())) << tenant;
    EXPECT_THAT(std::string(again.status().message()), HasSubstr(part));
    EXPECT_TRUE(GetRetryDelay(again.status()).has_value());
  };
  std::vector<TenantLimiter::Ticket> tickets;
  for (const std::string tenant : {"r", "r", "t", "c"}) {
    auto ticket = limiter.Enter(tenant, 60, kStart);
    ASSERT_TRUE(ticket.ok()) << tenant;
    tickets.push_back(*std::move(ticket));
  }
  refused("r", 1, "2 requests per second");
  refused("t", 60, "100 tokens per second");
  refused("c", 1, "1 requests at a time");
  EXPECT_TRUE(limiter.Enter("free", 1 << 30, kStart).ok()) << "no entry, no limit";
  tickets.clear();
  EXPECT_TRUE(limiter.Enter("c", 1, kStart).ok());
  limiter.Enter("t", 100, kStart)->set_used(70);  // nothing was made of the 60: they were paid back
  refused("t", 31, "100 tokens per second");
  EXPECT_TRUE(limiter.Enter("t", 30, kStart).ok()) << "only used tokens are charged";
  refused("r", 1, "2 requests per second");
}

TEST(TenantLimiter, OutputsOfACallEnterTogetherOrNotAtAll) {
  TenantLimiter limiter(*ParseTenantLimits("c:concurrent=4;r:rps=2;t:tps=100"), Tenants::kMaxTenants);
  // More requests than can ever run at the same time.
  EXPECT_EQ(limiter.EnterAll("c", 1, 5, kStart).status(),
            absl::InvalidArgumentError(
                "n is 5; must be at most 4, the requests that tenant \"c\" may have at a time"));
  auto three = limiter.EnterAll("c", 1, 3, kStart);
  ASSERT_TRUE(three.ok()) << three.status();
  EXPECT_THAT(*three, SizeIs(3));
  const absl::Status full = limiter.EnterAll("c", 1, 2, kStart).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_TRUE(GetRetryDelay(full).has_value());
  EXPECT_TRUE(limiter.Enter("c", 1, kStart).ok()) << "the refused call has taken nothing";
  three->pop_back();
  EXPECT_TRUE(limiter.EnterAll("c", 1, 2, kStart).ok()) << "each ticket is one output's";
  // A full bucket passes more than it holds, so that a large call is not refused for ever.
  EXPECT_TRUE(limiter.EnterAll("r", 1, 3, kStart).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(limiter.Enter("r", 1, kStart + absl::Milliseconds(900)).status()));
  EXPECT_TRUE(limiter.Enter("r", 1, kStart + absl::Seconds(1)).ok());
  auto large = limiter.EnterAll("t", 60, 3, kStart);
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_TRUE(absl::IsResourceExhausted(limiter.Enter("t", 1, kStart).status()));
  large->clear();
  EXPECT_TRUE(limiter.Enter("t", 100, kStart).ok()) << "all 180 were returned";
}

TEST(TenantLimiter, InventedNamesDoNotEvadeTheLimit) {
  TenantLimiter limiter(*ParseTenantLimits("*:concurrent=1"), Tenants::kMaxTenants);
  std::vector<TenantLimiter::Ticket> held;
  for (size_t i = 0; i < Tenants::kMaxTenants; ++i)
    held.push_back(*limiter.Enter(absl::StrCat("t", i), 1, kStart));
  auto shared = limiter.Enter("late", 1, kStart);
  EXPECT_FALSE(limiter.Enter("late", 1, kStart).ok());
  // Later names share as many accounts again.
  for (size_t i = 0; i < 20 * Tenants::kMaxTenants; ++i) {
    if (auto later = limiter.Enter(absl::StrCat("later", i), 1, kStart); later.ok())
      held.push_back(*std::move(later));
  }
  EXPECT_GT(held.size(), 3 * Tenants::kMaxTenants / 2);
  EXPECT_LE(held.size(), 2 * Tenants::kMaxTenants);
  held.clear();
  EXPECT_TRUE(limiter.Enter("later", 1, kStart).ok()) << "those that ask for nothing have made way";
}

TEST(Tenants, NamesKeepTheirNumbersAndLateNamesShareAsMany) {
  Tenants tenants({});
  EXPECT_EQ(tenants.Number(""), 0u);
  for (uint32_t i = 1; i <= Tenants::kMaxTenants; ++i) EXPECT_EQ(tenants.Number(absl::StrCat(i)), i);
  std::set<uint32_t> late;
  for (int i = 0; i < 20'000; ++i) late.insert(tenants.Number(absl::StrCat("late", i % 10'000)));
  EXPECT_GT(*late.begin(), Tenants::kMaxTenants);
  EXPECT_LE(*late.rbegin(), 2 * Tenants::kMaxTenants);
  EXPECT_GT(late.size(), Tenants::kMaxTenants / 2);
  EXPECT_EQ(tenants.Number("1"), 1u);
}

TEST(Tenants, RequestsGetPrioritiesAndObjectivesOfTheirTenant) {
  const Tenants tenants(
      *ParseTenantLimits("batch:priority=-20;acme:priority=10,ttft=0.5;free:rps=1;*:priority=0,ttft=2"));
  const struct {
    const char* what;
    ClientRequest request;
    bool ok = true;
    int32_t priority = 0;
    std::optional<absl::Duration> objective;
  } cases[] = {
      {"a bare resume has no priority", {.tenant = "batch", .resume_from = 3}},
      {"with a prompt it may start again", {.tenant = "batch", .prompt_tokens = 1, .resume_from = 3}, false},
      {"at its limit", {.tenant = "batch", .prompt_tokens = 1, .priority = -20}, true, -20},
      // Otherwise the tenant could not use protocols without priorities at all.
      {"lowered by default", {.tenant = "batch", .prompt_tokens = 1, .priority_unset = true}, true, -20},
      {"not raised",
       {.tenant = "acme", .prompt_tokens = 1, .priority_unset = true},
       true,
       0,
       absl::Seconds(0.5)},
      {"its own",
       {.tenant = "acme", .prompt_tokens = 1, .priority = 10, .ttft_objective = absl::Seconds(3)},
       true,
       10,
       absl::Seconds(3)},
      {"the wildcard's", {.tenant = "anybody", .prompt_tokens = 1}, true, 0, absl::Seconds(2)},
      {"above the wildcard's",
       {.tenant = "anybody", .prompt_tokens = 1, .priority = 1},
       false,
       1,
       absl::Seconds(2)},
      {"its entry has none", {.tenant = "free", .prompt_tokens = 1, .priority = 100}, true, 100},
  };
  for (auto one : cases) {
    SCOPED_TRACE(one.what);
    EXPECT_EQ(tenants.Prepare(one.request).ok(), one.ok);
    EXPECT_EQ(one.request.priority, one.priority);
    EXPECT_EQ(one.request.ttft_objective, one.objective);
  }
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
  int64_t accepted = 0, tokens = 0;
  for (const TenantTotal& tenant : all) {
    EXPECT_TRUE(names.insert(tenant.tenant).second) << tenant.tenant << " twice";
    accepted += tenant.accepted;
    tokens += tenant.generated_tokens;
    EXPECT_EQ(tenant.prompt_tokens, 10 * tenant.accepted);
    EXPECT_EQ(tenant.completed, tenant.accepted);
    EXPECT_EQ(tenant.accepted, tenant.tenant == "other" ? 1 + 500 - 63 : tenant.tenant == "t3" ? 2 : 1);
  }
  EXPECT_EQ(all.size(), 65u) << "no tenant, 63 names beside the one that is called other, and other";
  EXPECT_EQ(accepted, 503);
  EXPECT_EQ(tokens, 3 * accepted);
}

}  // namespace
}  // namespace bfio::router
