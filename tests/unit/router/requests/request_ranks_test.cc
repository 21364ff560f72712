// Requests that are held to the rank named by their clients, with several groups.
#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "common/base/retry_delay.h"
#include "tests/unit/router/requests/request_lifecycle_fixture.h"

namespace bfio::router {
namespace {

using ::testing::HasSubstr;

// Two groups of a rank each.
class HeldToARank : public RequestLifecycleTest {
 protected:
  void SetUp() override {
    RequestLifecycleTest::SetUp();
    ASSERT_TRUE(cluster_->Apply(core::AddGroup{1, core::GroupKind::kBarrier}).status.ok());
    for (const core::GroupIndex group : {0, 1}) Open(group);
    See({{0, 1}, {1, 1}});
  }
  void Open(core::GroupIndex group) {
    core::EpochMember member;
    member.spec.slots = 1;
    member.spec.kv_tokens = 1000;
    cluster_->Apply(core::OpenEpoch{group, {member}});
  }
  void See(std::vector<GroupRanks> ranks, bool complete = true) {
    requests_->SetGroups({.max_sequence_tokens = 1001, .complete = complete, .ranks = std::move(ranks)});
  }
  RecordingSink& Name(const std::string& name, uint32_t rank) {
    ClientRequest request = Request(name);
    request.rank = rank;
    return Arrive(std::move(request));
  }
};

TEST_F(HeldToARank, ARequestEndsWhenTheGroupOfItsRankIsGivenUp) {
  const RecordingSink& running = Name("running", 1);
  const core::Outcome plan = cluster_->Apply(core::MakePlan{1, false});
  ASSERT_TRUE(plan.plan && plan.plan->placements.size() == 1);
  ASSERT_TRUE(requests_->OnPlaced(running.id(), 1, 0, now_).has_value());
  const RecordingSink& waiting = Name("waiting", 1);
  const RecordingSink& elsewhere = Name("elsewhere", 0);
  cluster_->Apply(core::CloseEpoch{1});
  See({{0, 1}, {1, 0, /*returns=*/true}});
  EXPECT_TRUE(waiting.open()) << "its rank may come back";
  // As Group::GiveUp does.
  for (const core::RequestId id : cluster_->Apply(core::OpenEpoch{1, {}}).displaced)
    requests_->OnLost(id, now_);
  cluster_->Apply(core::CloseEpoch{1});
  See({{0, 1}, {1, 0, /*returns=*/false}});
  for (const RecordingSink* sink : {&running, &waiting}) {
    ASSERT_FALSE(sink->open());
    EXPECT_TRUE(absl::IsUnavailable(*sink->status)) << *sink->status;
    EXPECT_THAT(sink->status->message(), HasSubstr("data_parallel_rank 1 has left"));
    EXPECT_TRUE(GetRetryDelay(*sink->status).has_value());
  }
  EXPECT_TRUE(elsewhere.open());
  EXPECT_EQ(cluster_->waiting(), 1);
}

TEST_F(HeldToARank, ARankWhoseGroupFormsAgainIsUnavailable) {
  const auto unavailable = [&](const std::string& name, uint32_t rank) {
    const RecordingSink& sink = Name(name, rank);
    ASSERT_FALSE(sink.open());
    EXPECT_TRUE(absl::IsUnavailable(*sink.status)) << *sink.status;
    EXPECT_TRUE(GetRetryDelay(*sink.status).has_value());
  };
  cluster_->Apply(core::CloseEpoch{1});
  See({{0, 1}, {1, 0, /*returns=*/true}});
  EXPECT_TRUE(Name("before it", 0).open());
  unavailable("of it", 1);
  // While the first group is away, the ranks of later groups keep their numbers.
  Open(1);
  cluster_->Apply(core::CloseEpoch{0});
  See({{0, 0, /*returns=*/true}, {1, 1}});
  unavailable("of it", 0);
  unavailable("behind it", 1);
  EXPECT_EQ(requests_->totals().refused_invalid, 0);
  // The first group was given up, so the numbers of the remaining ranks begin at 0.
  See({{0, 0, /*returns=*/false}, {1, 1}});
  EXPECT_TRUE(Name("the first of the rest", 0).open());
  EXPECT_EQ(Name("none", 1).status,
            absl::InvalidArgumentError("data_parallel_rank is 1; it must be below 1"));
  See({{0, 0, /*returns=*/false}, {1, 1}}, /*complete=*/false);
  unavailable("of workers that have not come", 1);
}

}  // namespace
}  // namespace bfio::router
