#include "router/requests/request_table.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/base/clock.h"

namespace bfio::router {
namespace {

ClientRequest Named(const std::string& name) {
  return {.request_id = name};
}

TEST(RequestTable, NamesAndNumbersOfLiveRequestsAreUnique) {
  RequestTable table;
  RequestRecord* const first = table.Add(7, Named("first"), nullptr, 0, MonotonicNow());
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(table.Add(8, Named("first"), nullptr, 0, MonotonicNow()), nullptr) << "its name is taken";
  EXPECT_EQ(table.Add(7, Named("second"), nullptr, 0, MonotonicNow()), nullptr) << "its number is taken";
  EXPECT_EQ(table.size(), 1u);
  EXPECT_EQ(table.Find(7), first);
  EXPECT_EQ(table.Find(8), nullptr);
  EXPECT_EQ(table.FindByName("", "first"), first);
  EXPECT_EQ(table.FindByName("", "second"), nullptr);
  EXPECT_EQ(table.FindByName("acme", "first"), nullptr) << "another tenant's";
  table.Erase(7);
  EXPECT_NE(table.Add(7, Named("second"), nullptr, 0, MonotonicNow()), nullptr);
  EXPECT_NE(table.Add(8, Named("first"), nullptr, 0, MonotonicNow()), nullptr);
}

TEST(RequestTable, NamesAreScopedToTheirTenant) {
  RequestTable table;
  ClientRequest other = Named("r");
  other.tenant = "acme";
  RequestRecord* const first = table.Add(1, Named("r"), nullptr, 0, MonotonicNow());
  RequestRecord* const second = table.Add(2, other, nullptr, 1, MonotonicNow());
  ASSERT_TRUE(first != nullptr && second != nullptr);
  EXPECT_EQ(table.FindByName("acme", "r"), second);
  table.Erase(1);
  EXPECT_EQ(table.FindByName("", "r"), nullptr);
  EXPECT_EQ(table.FindByName("acme", "r"), second);
  EXPECT_EQ(second->LogName(), "r of tenant acme");
}

TEST(RequestTable, OnlyTheLastTokenIsLeftToComputeWhereKvComesFromElsewhere) {
  RequestTable table;
  ClientRequest request = Named("r");
  request.prompt_tokens = 10;
  request.max_new_tokens = 5;
  request.passed.kv_from_elsewhere = true;
  RequestRecord* const record = table.Add(1, request, nullptr, 0, MonotonicNow());
  ASSERT_NE(record, nullptr);
  EXPECT_EQ(record->Spec(1).prefill_tokens, 10);
  EXPECT_EQ(record->Spec(1).tokens_to_compute(), 1);
  record->delivered = 2;
  EXPECT_EQ(record->Spec(1).tokens_to_compute(), 12) << "the rank that held its KV is gone";
}

TEST(RequestTable, ASpecKeepsItsPromptsBlockNamesAtAnyProgress) {
  RequestTable table;
  ClientRequest request = Named("r");
  request.prompt = std::vector<uint32_t>(70, 3);
  request.prompt_tokens = 70;
  request.max_new_tokens = 5;
  request.prefix = core::NamePrefixBlocks(request.prompt);
  RequestRecord* const record = table.Add(1, request, nullptr, 0, MonotonicNow());
  ASSERT_NE(record, nullptr);
  ASSERT_NE(request.prefix, nullptr);
  EXPECT_EQ(record->Spec(1).prefix, request.prefix);
  record->delivered = 2;
  EXPECT_EQ(record->Spec(1).prefix, request.prefix) << "placed again, it begins with the same prompt";
}

TEST(RequestTable, ASpecIncludesTheTenantAndDeliveredTokens) {
  RequestTable table;
  ClientRequest request = Named("r");
  request.prompt_tokens = 10;
  request.max_new_tokens = 50;
  request.predicted_output_tokens = 20;
  RequestRecord* record = table.Add(1, request, nullptr, 1, absl::UnixEpoch());
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
  record->wait_steps = 9;
  EXPECT_EQ(record->MakeAssignment(false).waited_steps, 12);
}

TEST(RequestTable, WithoutASeedTheNameIsTheSeed) {
  RequestTable table;
  const auto seed_of = [&](core::RequestId id, const ClientRequest& request) {
    const uint64_t seed = table.Add(id, request, nullptr, 0, absl::UnixEpoch())->MakeAssignment(false).seed;
    table.Erase(id);
    return seed;
  };
  const uint64_t seed = seed_of(1, Named("r"));
  EXPECT_EQ(seed_of(2, Named("r")), seed) << "whatever its number in this run of the router";
  EXPECT_NE(seed_of(3, Named("s")), seed);
  ClientRequest request = Named("r");
  request.resumable = true;
  EXPECT_EQ(seed_of(4, request), seed);
  request.sampling.seed = 5;
  EXPECT_EQ(seed_of(5, request), 5u);
}

TEST(RequestTable, ASpecHasTheObjectiveUntilTheFirstToken) {
  RequestTable table;
  ClientRequest request = Named("r");
  RequestRecord* without = table.Add(1, request, nullptr, 0, absl::UnixEpoch());
  EXPECT_EQ(without->Spec(7).ttft_objective_s, std::nullopt);
  request = Named("s");
  request.ttft_objective = absl::Milliseconds(1500);
  RequestRecord* record = table.Add(2, request, nullptr, 0, absl::UnixEpoch());
  EXPECT_EQ(record->Spec(7).ttft_objective_s, 1.5);
  record->first_token = absl::UnixEpoch() + absl::Seconds(1);
  EXPECT_EQ(record->Spec(7).ttft_objective_s, std::nullopt) << "placed again after its worker was lost";
}

}  // namespace
}  // namespace bfio::router
