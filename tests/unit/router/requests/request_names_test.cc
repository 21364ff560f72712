// Requests that name a model, a rank, or a call of an agent.
#include <string>
#include <utility>
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

// --- request ranks ---

// Requests that are held to the rank that their clients name.

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

// --- request calls ---

// Calls of several outputs: each output is a request, and the call is accepted, named and aborted as one.

TEST_F(RequestLifecycleTest, ACallHasItsNameUntilItsLastOutputEndsAndIsAbortedAsOne) {
  OpenEpoch();
  const std::vector<Client*> clients = ArriveAll(Request("a", 1), 3);
  Place();
  const auto end = [&](Client& client) {
    Tokens(client, {1});
    Finish(client);
  };
  end(*clients[0]);
  const auto taken = absl::AlreadyExistsError("a request is already running with the request_id a");
  EXPECT_EQ(Arrive(Request("a")).status, taken);
  for (const Client* again : ArriveAll(Request("a"), 3)) EXPECT_EQ(again->status, taken);
  EXPECT_TRUE(Arrive(Request("a/1")).open()) << "a name like any other";
  EXPECT_TRUE(clients[1]->open());
  EXPECT_TRUE(Abort("a"));
  for (const size_t i : {1, 2}) EXPECT_EQ(clients[i]->finish->reason, FinishReason::kAbort);
  EXPECT_EQ(clients[0]->finish->reason, FinishReason::kLength);
  EXPECT_EQ(totals().aborted, 2);
  EXPECT_FALSE(Abort("a"));
  const std::vector<Client*> more = ArriveAll(Request("a", 1), 2);
  Place();
  for (Client* client : more) end(*client);
  EXPECT_TRUE(Arrive(Request("a")).open()) << "whether or not the client has read the outputs";
}

TEST_F(RequestLifecycleTest, ACallIsAcceptedWholeOrNotAtAll) {
  Start({}, {.max_waiting = 8}, "t:tps=100");
  OpenEpoch();
  ClientRequest call = Request("a", 10, "t");
  for (const char* name : {"b", "c", "d", "e", "f"}) Arrive(Request(name));
  for (const Client* client : ArriveAll(call, 3))
    EXPECT_THAT(*client, EndsForNow(StatusCode::kResourceExhausted, ""));
  EXPECT_EQ(totals().refused_pool_full, 1);
  EXPECT_EQ(totals().accepted, 5);
  EXPECT_EQ(requests_->live(), 5);
  EXPECT_EQ(cluster_->waiting(), 5);
  EXPECT_EQ(overload_->committed_kv(), 5 * 13);
  call.max_new_tokens = 97;
  EXPECT_TRUE(tenants_->Enter(call, now_).ok()) << "its tenant has paid nothing";
  for (const char* name : {"b", "c", "d", "e", "f"}) EXPECT_TRUE(Abort(name));
  EXPECT_TRUE(ArriveAll(call, 3)[2]->open()) << "nor is its name taken";
}

TEST_F(RequestLifecycleTest, TheFirstCallIsAcceptedWhateverItsSize) {
  Start({}, {.max_waiting_kv = 1});
  OpenEpoch();
  // 5 times 403 tokens are more than twice the 1000 that the worker has.
  for (const Client* client : ArriveAll(Request("a", 400), 5)) EXPECT_TRUE(client->open()) << *client->status;
  EXPECT_TRUE(Abort("a"));
  EXPECT_TRUE(Arrive(Request("b")).open());
  EXPECT_TRUE(absl::IsResourceExhausted(*ArriveAll(Request("a", 400), 5)[0]->status));
}

TEST(OverloadControl, ACallThatNoPoolHoldsIsInvalid) {
  OverloadControl control({.max_waiting = 10});
  EXPECT_TRUE(control.CheckPool("", 10, /*held=*/false).ok());
  EXPECT_EQ(control.CheckPool("", 11, false),
            absl::InvalidArgumentError(
                "n is 11; must be at most 10, the requests that may wait at a time (--max_waiting)"));
  EXPECT_TRUE(control.CheckPool("", 5, /*held=*/true).ok());
  EXPECT_EQ(control.CheckPool("", 6, true),
            absl::InvalidArgumentError("n is 6; must be at most 5, the requests that may wait with a "
                                       "data_parallel_rank (--max_waiting)"));
  control.SetWaiting(7);
  EXPECT_TRUE(control.CheckPool("", 3, false).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(control.CheckPool("", 4, false)));
}

}  // namespace
}  // namespace bfio::router
