// Requests in a router that serves several models.
#include "router/requests/request_lifecycle.h"

#include <gmock/gmock.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/router/requests/request_lifecycle_fixture.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RequestModelsTest : public RequestLifecycleTest {
 protected:
  // Opens an epoch of `model` in which no worker holds requests.
  void Serve(uint32_t model) {
    core::EpochMember member;
    member.spec.slots = 4;
    member.spec.kv_tokens = 1000;
    model_ = model;
    const core::Outcome outcome = cluster_->Apply(core::OpenEpoch{0, {member}, model});
    step_ = 0;
    for (auto id = outcome.displaced.rbegin(); id != outcome.displaced.rend(); ++id)
      requests_->OnLost(*id, now_);
  }
  void Know(const std::vector<uint32_t>& models) {
    GroupsView view = {.kv_tokens = 1000, .max_sequence_tokens = 500};
    for (const uint32_t model : models) view.models[model] = absl::StrCat("digest ", model);
    requests_->SetGroups(view);
  }
  // Makes a plan. Returns the ids of the requests that it places.
  std::vector<core::RequestId> PlaceThere() {
    std::vector<core::RequestId> ids;
    const core::Outcome outcome = cluster_->Apply(core::MakePlan{0, false});
    for (const core::Placement& placement :
         outcome.plan ? outcome.plan->placements : std::vector<core::Placement>()) {
      ids.push_back(placement.id);
      EXPECT_TRUE(requests_->OnPlaced(placement.id, 0, placement.wait_steps, now_, model_).has_value());
    }
    return ids;
  }

  uint32_t model_ = 0;
};

TEST_F(RequestModelsTest, BegunRequestsWaitForTheirModelOthersDoNot) {
  Know({1, 2});
  Serve(1);
  RecordingSink& begun = Arrive(Request("begun"));
  RecordingSink& placed = Arrive(Request("placed"));
  EXPECT_EQ(PlaceThere().size(), 2u);
  Tokens(begun, {5, 6});
  Serve(2);
  EXPECT_THAT(PlaceThere(), ElementsAre(placed.id()));
  EXPECT_TRUE(begun.open());
  EXPECT_EQ(cluster_->waiting(), 1);
  Serve(1);
  EXPECT_THAT(PlaceThere(), testing::Contains(begun.id()));
  Tokens(begun, {7});
  EXPECT_THAT(begun.tokens, ElementsAre(5, 6, 7));
}

TEST_F(RequestModelsTest, ARequestWhoseModelIsGoneEndsWithAnError) {
  Know({1, 2});
  Serve(1);
  RecordingSink& begun = Arrive(Request("begun"));
  RecordingSink& fresh = Arrive(Request("fresh"));
  EXPECT_EQ(PlaceThere().size(), 2u);
  Tokens(begun, {5, 6});
  Serve(2);
  Know({2});
  EXPECT_TRUE(absl::IsFailedPrecondition(*begun.status)) << *begun.status;
  EXPECT_THAT(begun.status->message(), HasSubstr("after 2 tokens were delivered"));
  EXPECT_TRUE(fresh.open());
  EXPECT_EQ(cluster_->waiting(), 1);
  EXPECT_EQ(requests_->totals().replays_refused, 1);
}

TEST_F(RequestModelsTest, ARequestLosingItsWorkerAfterItsModelEndsAtOnce) {
  Know({1});
  Serve(1);
  RecordingSink& begun = Arrive(Request("begun"));
  EXPECT_EQ(PlaceThere().size(), 1u);
  Tokens(begun, {5});
  Know({2});
  EXPECT_TRUE(begun.open()) << "its worker may go on with it";
  Serve(2);
  EXPECT_TRUE(absl::IsFailedPrecondition(*begun.status));
  EXPECT_EQ(requests_->totals().replayed, 0);
}

TEST_F(RequestModelsTest, AStreamGetsTheModelBeforeItsTokens) {
  Know({1, 2});
  Serve(1);
  RecordingSink& first = Arrive(ResumableRequest("a"));
  RecordingSink& once = Arrive(Request("b"));
  EXPECT_EQ(PlaceThere().size(), 2u);
  EXPECT_EQ(first.model, "") << "another may yet make them";
  Tokens(first, {5});
  Tokens(once, {5});
  EXPECT_EQ(first.model, "digest 1");
  EXPECT_EQ(once.model, "") << "its client cannot come back";
  RecordingSink& second = Arrive(ComeBack("a", 0));
  EXPECT_EQ(second.model, "digest 1");
  EXPECT_THAT(second.tokens, ElementsAre(5));
}

TEST_F(RequestModelsTest, ATicketContinuesOnlyWithItsModel) {
  Know({1, 2});
  now_ += absl::Hours(1);  // the time for workers to announce held requests has passed
  requests_->OnTimer(now_);
  ClientRequest claimed = Interrupted("a", 3, true);
  claimed.model = "digest 2";
  RecordingSink& bound = Arrive(claimed);
  // The client has tokens too but does not send them.
  claimed = Interrupted("b", 0, true);
  claimed.resume_from = 2;
  claimed.model = "digest 2";
  RecordingSink& anew = Arrive(claimed);
  // No token has been generated, so any model may begin.
  claimed = Interrupted("c", 0, true);
  claimed.model = "digest 9";
  RecordingSink& free = Arrive(claimed);
  EXPECT_EQ(WaitingSpec(bound.id()).model, 2u);
  EXPECT_EQ(WaitingSpec(anew.id()).model, 2u);
  EXPECT_EQ(WaitingSpec(free.id()).model, 0u);
  Serve(1);
  EXPECT_THAT(PlaceThere(), ElementsAre(free.id()));
  Serve(2);
  EXPECT_THAT(PlaceThere(), testing::IsSupersetOf({bound.id(), anew.id()}));
  EXPECT_EQ(bound.model, "digest 2") << "its next ticket says the same";
  Know({1});
  Serve(1);
  EXPECT_TRUE(absl::IsFailedPrecondition(*bound.status));
  EXPECT_TRUE(absl::IsFailedPrecondition(*anew.status));
}

TEST_F(RequestModelsTest, ATicketForAnUnknownModelIsRefusedAtOnce) {
  Know({1});
  now_ += absl::Hours(1);
  requests_->OnTimer(now_);
  ClientRequest claimed = Interrupted("a", 3, true);
  claimed.model = "digest 2";
  const RecordingSink& gone = Arrive(claimed);
  EXPECT_TRUE(absl::IsFailedPrecondition(*gone.status));
  EXPECT_THAT(gone.status->message(), HasSubstr("after 3 tokens were delivered"));
  EXPECT_EQ(requests_->totals().resume_refused, 1);
}

TEST_F(RequestModelsTest, ARecoveredRequestKeepsItsWorkersModel) {
  Know({3, 4});
  HeldRequest held = {.id = 1000, .request = ResumableRequest("a", 9), .tokens = {5, 6}, .model = 3};
  requests_->SetTime(now_);
  const auto recovered = requests_->Recover("w", {held}, std::vector<HeldActive>{{1000, 5, 2}});
  ASSERT_EQ(recovered.size(), 1u);
  EXPECT_EQ(recovered[0].model, 3u);
}

}  // namespace
}  // namespace bfio::router
