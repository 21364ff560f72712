#include "router/requests/tenants.h"

#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "router/requests/request_table.h"
#include "router/requests/tenant_totals.h"

namespace bfio::router {
namespace {

TEST(Tenants, NamesKeepTheirNumbersAndLateNamesShareOne) {
  Tenants tenants(2);
  EXPECT_EQ(tenants.Number(""), 0u);
  EXPECT_EQ(tenants.Number("a"), 1u);
  EXPECT_EQ(tenants.Number("b"), 2u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(tenants.Number("late" + std::to_string(i)), 3u);
  EXPECT_EQ(tenants.Number("a"), 1u);
  EXPECT_EQ(tenants.Number("b"), 2u);
}

// A scrape breaks on two series of one name, and a flood of names must not grow it.
TEST(TenantTotals, LateNamesAndOneThatIsCalledSoShareOther) {
  Tenants tenants;
  TenantTotals totals;
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
  v1::ClusterState state;
  totals.Fill(state);
  std::set<std::string> names;
  uint64_t accepted = 0, tokens = 0, others = 0;
  for (const v1::TenantTotals& tenant : state.tenants()) {
    EXPECT_TRUE(names.insert(tenant.tenant()).second) << tenant.tenant() << " twice";
    accepted += tenant.accepted();
    tokens += tenant.generated_tokens();
    EXPECT_EQ(tenant.prompt_tokens(), 10 * tenant.accepted());
    EXPECT_EQ(tenant.completed(), tenant.accepted());
    if (tenant.tenant() == "other") others = tenant.accepted();
    if (tenant.tenant() == "t3") {
      EXPECT_EQ(tenant.accepted(), 2u);
    }
  }
  EXPECT_EQ(state.tenants_size(), 65) << "no tenant, 63 names beside the one that is called other, and other";
  EXPECT_EQ(accepted, 503u);
  EXPECT_EQ(tokens, 3 * accepted);
  EXPECT_EQ(others, 1u + 500 - 63);
}

TEST(RequestTable, ASpecCarriesTenantAndWhatWasDelivered) {
  RequestTable table;
  v1::GenerateRequest request;
  request.set_request_id("r");
  request.set_tenant("acme");
  request.set_prompt_length(10);
  request.set_max_new_tokens(50);
  request.set_predicted_output_tokens(20);
  RequestRecord* record = table.Add(1, request, nullptr, absl::UnixEpoch());
  request.set_request_id("s");
  request.set_tenant("");
  EXPECT_EQ(table.Add(2, request, nullptr, absl::UnixEpoch())->Spec(7).tenant, 0u);
  EXPECT_EQ(record->Spec(7).tenant, 1u);
  EXPECT_EQ(record->Spec(7).generated_tokens, 0);
  record->delivered = 5;
  const core::RequestSpec spec = record->Spec(7);
  EXPECT_EQ(spec.generated_tokens, 5);
  EXPECT_EQ(spec.prefill_tokens, 15);
  EXPECT_EQ(spec.max_new_tokens, 45);
  EXPECT_EQ(spec.predicted_output_tokens, 15);
  EXPECT_EQ(spec.seniority, 0);
  record->senior_step = 4;
  EXPECT_EQ(record->Spec(7).seniority, 3) << "its age is kept wherever it waits";
}

}  // namespace
}  // namespace bfio::router
