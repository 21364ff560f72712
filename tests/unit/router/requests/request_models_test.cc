// Requests in a router that serves several models.
#include <vector>

#include "tests/unit/router/requests/request_lifecycle_fixture.h"

namespace bfio::router {
namespace {

using absl::StatusCode;
using ::testing::ElementsAre;
using ::testing::SizeIs;

class RequestModelsTest : public RequestLifecycleTest {
 protected:
  // Opens an epoch of `model` in which no worker holds requests. Returns the ids of the requests that it
  // gets.
  std::vector<core::RequestId> Serve(uint32_t model) {
    core::EpochMember member;
    member.spec = {.slots = 4, .kv_tokens = 1000};
    Open({member}, model);
    std::vector<core::RequestId> ids;
    for (const Assignment& assignment : Place()) ids.push_back(assignment.id);
    return ids;
  }
  void Know(const std::vector<uint32_t>& models) {
    GroupsView view = {.capacities = {Capacity()}};
    for (const uint32_t model : models) view.models[model] = absl::StrCat("digest ", model);
    requests_->SetGroups(view);
  }
};

TEST_F(RequestModelsTest, ARequestWhoseModelIsGoneEndsWithAnError) {
  Know({1, 2});
  Client &begun = Arrive(Request("begun")), &fresh = Arrive(Request("fresh"));
  EXPECT_THAT(Serve(1), SizeIs(2));
  Tokens(begun, {5, 6});
  Open({}, 0);
  Know({2});
  EXPECT_THAT(begun, EndsWith(StatusCode::kFailedPrecondition, "after 2 tokens were delivered"));
  EXPECT_TRUE(fresh.open());
  EXPECT_EQ(cluster_->waiting(), 1);
  EXPECT_EQ(totals().replays_refused, 1);
  // One that runs may go on, until it loses its worker.
  EXPECT_THAT(Serve(2), ElementsAre(fresh.id()));
  Tokens(fresh, {5});
  Know({3});
  EXPECT_TRUE(fresh.open());
  const int64_t replayed = totals().replayed;
  Serve(3);
  EXPECT_TRUE(absl::IsFailedPrecondition(*fresh.status));
  EXPECT_EQ(totals().replayed, replayed);
}

TEST_F(RequestModelsTest, AStreamGetsTheModelBeforeItsTokens) {
  Know({1, 2});
  Client &first = Arrive(ResumableRequest("a")), &once = Arrive(Request("b"));
  EXPECT_THAT(Serve(1), SizeIs(2));
  EXPECT_EQ(first.model, "") << "another may yet make them";
  Tokens(first, {5});
  Tokens(once, {5});
  EXPECT_EQ(first.model, "digest 1");
  EXPECT_EQ(once.model, "") << "its client cannot come back";
  Client& second = Arrive(ComeBack("a", 0));
  EXPECT_EQ(second.model, "digest 1");
  EXPECT_THAT(second.tokens, ElementsAre(5));
}

TEST_F(RequestModelsTest, ATicketContinuesOnlyWithItsModel) {
  Know({1, 2});
  PassTime(absl::Hours(1));  // the time for workers to announce held requests has passed
  Client& bound = Arrive(Interrupted("a", 3, true, "digest 2"));
  // The client has tokens too but does not send them.
  ClientRequest claimed = Interrupted("b", 0, true, "digest 2");
  claimed.resume_from = 2;
  Client& anew = Arrive(claimed);
  // No token has been generated, so any model may begin.
  Client& free = Arrive(Interrupted("c", 0, true, "digest 9"));
  EXPECT_EQ(WaitingSpec(bound).model, 2u);
  EXPECT_EQ(WaitingSpec(anew).model, 2u);
  EXPECT_EQ(WaitingSpec(free).model, 0u);
  EXPECT_THAT(Arrive(Interrupted("d", 3, true, "digest 9")),
              EndsWith(StatusCode::kFailedPrecondition, "after 3 tokens were delivered"));
  EXPECT_EQ(totals().resume_refused, 1);
  EXPECT_THAT(Serve(1), ElementsAre(free.id()));
  EXPECT_THAT(Serve(2), testing::IsSupersetOf({bound.id(), anew.id()}));
  EXPECT_EQ(bound.model, "digest 2") << "its next ticket says the same";
  Know({1});
  Serve(1);
  EXPECT_TRUE(absl::IsFailedPrecondition(*bound.status));
  EXPECT_TRUE(absl::IsFailedPrecondition(*anew.status));
}

TEST_F(RequestModelsTest, ARecoveredRequestKeepsItsWorkersModel) {
  Know({3, 4});
  const HeldRequest held = {.id = 1000, .request = ResumableRequest("a", 9), .tokens = {5, 6}, .model = 3};
  const auto recovered = Recover(held, {{1000, 5, 2}});
  ASSERT_THAT(recovered, SizeIs(1));
  EXPECT_EQ(recovered[0].model, 3u);
}

}  // namespace
}  // namespace bfio::router
