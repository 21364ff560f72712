// Requests that are held to the rank that their clients name.
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/router/requests/request_lifecycle_fixture.h"

namespace bfio::router {
namespace {

using absl::StatusCode;

class HeldToARank : public RequestLifecycleTest {
 protected:
  // A group's epoch of ranks with so much KV memory each.
  void OpenRanks(const std::vector<int64_t>& kv_tokens, core::GroupIndex group = 0) {
    core::OpenEpoch epoch{group, {}};
    for (const int64_t kv : kv_tokens) epoch.members.emplace_back().spec = {.slots = 4, .kv_tokens = kv};
    cluster_->Apply(epoch);
    See({{0, static_cast<int32_t>(kv_tokens.size())}});
    requests_->OnEpochOpened(now_);
  }
  void OpenTwoGroups() {
    ASSERT_TRUE(cluster_->Apply(core::AddGroup{1, core::GroupKind::kBarrier}).status.ok());
    for (const core::GroupIndex group : {0, 1}) OpenRanks({1000}, group);
    See({{0, 1}, {1, 1}});
  }
  void See(std::vector<GroupRanks> ranks, bool complete = true) {
    requests_->SetGroups(
        {.capacities = {Capacity(1000, 1001)}, .complete = complete, .ranks = std::move(ranks)});
  }
  Client& Name(const std::string& name, uint32_t rank, uint32_t max_new_tokens = 10, bool unset = false) {
    ClientRequest request = Request(name, max_new_tokens);
    request.rank = rank;
    request.max_new_tokens_unset = unset;
    return Arrive(std::move(request));
  }
};

// Otherwise it would wait forever, and so would all requests behind it that are held to this rank.
TEST_F(HeldToARank, ARequestFitsTheKvMemoryOfThatRank) {
  OpenRanks({1000, 100});
  // Prompts of 3 tokens; the last token needs no memory.
  const Client& large = Name("large", 0, 900);
  const Client& small = Name("small", 1, 98);
  EXPECT_EQ(Name("too large", 1, 99).status,
            absl::InvalidArgumentError(
                "the prompt and the largest output are 102 tokens; data_parallel_rank 1 holds at "
                "most 101 per request"));
  EXPECT_TRUE(large.open() && small.open());
  const Client& fitted = Name("unset", 1, 998, /*unset=*/true);
  ASSERT_TRUE(fitted.open()) << *fitted.status;
  EXPECT_EQ(WaitingSpec(fitted).max_new_tokens, 98);
  // The next epoch has a smaller rank in its place.
  OpenRanks({1000, 99});
  for (const Client* client : {&small, &fitted}) EXPECT_THAT(*client, EndsWith(StatusCode::kUnavailable, ""));
  EXPECT_TRUE(large.open());
}

TEST_F(HeldToARank, ARequestEndsWhenTheGroupOfItsRankIsGivenUp) {
  OpenTwoGroups();
  const Client& running = Name("running", 1);
  const core::Outcome plan = cluster_->Apply(core::MakePlan{1, false});
  ASSERT_TRUE(plan.plan && plan.plan->placements.size() == 1);
  ASSERT_TRUE(requests_->OnPlaced(running.id(), 1, 0, now_).has_value());
  const Client &waiting = Name("waiting", 1), &elsewhere = Name("elsewhere", 0);
  cluster_->Apply(core::CloseEpoch{1});
  See({{0, 1}, {1, 0, /*returns=*/true}});
  EXPECT_TRUE(waiting.open()) << "its rank may come back";
  // As Group::GiveUp does.
  for (const core::RequestId id : cluster_->Apply(core::OpenEpoch{1, {}}).displaced)
    requests_->OnLost(id, now_);
  cluster_->Apply(core::CloseEpoch{1});
  See({{0, 1}, {1, 0, /*returns=*/false}});
  for (const Client* client : {&running, &waiting})
    EXPECT_THAT(*client, EndsForNow(StatusCode::kUnavailable, "data_parallel_rank 1 has left"));
  EXPECT_TRUE(elsewhere.open());
  EXPECT_EQ(cluster_->waiting(), 1);
}

TEST_F(HeldToARank, ARankWhoseGroupFormsAgainIsUnavailable) {
  OpenTwoGroups();
  const auto unavailable = EndsForNow(StatusCode::kUnavailable, "");
  cluster_->Apply(core::CloseEpoch{1});
  See({{0, 1}, {1, 0, /*returns=*/true}});
  EXPECT_TRUE(Name("before it", 0).open());
  EXPECT_THAT(Name("of it", 1), unavailable);
  // While the first group is away, the ranks of later groups keep their numbers.
  OpenRanks({1000}, 1);
  cluster_->Apply(core::CloseEpoch{0});
  See({{0, 0, /*returns=*/true}, {1, 1}});
  EXPECT_THAT(Name("of it", 0), unavailable);
  EXPECT_THAT(Name("behind it", 1), unavailable);
  EXPECT_EQ(totals().refused_invalid, 0);
  // The first group was given up, so the numbers of the remaining ranks begin at 0.
  See({{0, 0, /*returns=*/false}, {1, 1}});
  EXPECT_TRUE(Name("the first of the rest", 0).open());
  EXPECT_EQ(Name("none", 1).status,
            absl::InvalidArgumentError("data_parallel_rank is 1; it must be below 1"));
  See({{0, 0, /*returns=*/false}, {1, 1}}, /*complete=*/false);
  EXPECT_THAT(Name("of workers that have not come", 1), unavailable);
}

}  // namespace
}  // namespace bfio::router
