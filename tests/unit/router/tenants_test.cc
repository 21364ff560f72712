#include "router/service/tenants.h"

#include <gtest/gtest.h>

#include "router/service/request_table.h"

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
  EXPECT_EQ(table.Add(2, request, nullptr, absl::UnixEpoch())->Spec().tenant, 0u);
  EXPECT_EQ(record->Spec().tenant, 1u);
  EXPECT_EQ(record->Spec().generated_tokens, 0);
  record->delivered = 5;
  const core::RequestSpec spec = record->Spec();
  EXPECT_EQ(spec.generated_tokens, 5);
  EXPECT_EQ(spec.prefill_tokens, 15);
  EXPECT_EQ(spec.max_new_tokens, 45);
  EXPECT_EQ(spec.predicted_output_tokens, 15);
}

}  // namespace
}  // namespace bfio::router
