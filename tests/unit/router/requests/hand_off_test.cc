// Prompts that are computed for another rank: each result is sent to one rank, in time.
#include "router/requests/hand_off.h"

#include "tests/unit/router/requests/request_lifecycle_fixture.h"

namespace bfio::router {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class HandOffTest : public RequestLifecycleTest {
 protected:
  void SetUp() override {
    Start({.kv_on_demand = true});
    OpenEpoch();
    Serve(true);
  }
  void Serve(bool hands_over) {
    requests_->SetGroups(
        {.capacities = {Capacity()}, .complete = true, .ranks = {{0, 1}}, .hands_over = hands_over});
  }
  uint32_t Needs(const Client& client) const { return WaitingSpec(client).needs; }
  // The rank on which it is placed has computed its prompt.
  void HandOver(const Client& client, const std::string& parameters) {
    const std::vector<core::RequestId> ids = {client.id()};
    core::StepReport report = {.step = ++step_};
    report.preempted = ids;
    EXPECT_TRUE(cluster_->Apply(core::Report{0, 0, report}).status.ok());
    requests_->OnPreempted(client.id(), now_,
                           std::make_shared<const RequestHandOff>(RequestHandOff{parameters}));
  }
  // A rank without the KV refuses the request.
  void Refuse(const Client& client) {
    const std::vector<core::RequestId> ids = {client.id()};
    core::StepReport report = {.step = ++step_};
    report.rejected = ids;
    EXPECT_TRUE(cluster_->Apply(core::Report{0, 0, report}).status.ok());
    Reject(client);
  }
  Assignment PlaceOne() {
    const std::vector<Assignment> placed = Place();
    EXPECT_THAT(placed, SizeIs(1));
    return placed.empty() ? Assignment() : placed[0];
  }
  static constexpr uint32_t kHandsOver = core::RequestSpec::kHandsOver,
                            kDecodes = core::RequestSpec::kDecodes;
};

TEST_F(HandOffTest, APromptIsComputedOnceAndItsHandOffIsSentOnce) {
  Client& client = Arrive(Request("a"));
  EXPECT_EQ(Needs(client), kHandsOver);
  EXPECT_EQ(WaitingSpec(client).max_new_tokens, 1);
  const Assignment first = PlaceOne();
  EXPECT_TRUE(first.hands_over);
  HandOver(client, "parameters");
  EXPECT_EQ(Needs(client), kDecodes);
  EXPECT_EQ(WaitingSpec(client).computed_tokens, 2);
  EXPECT_EQ(WaitingSpec(client).max_new_tokens, 10);
  const Assignment second = PlaceOne();
  EXPECT_FALSE(second.hands_over);
  EXPECT_EQ(second.hand_off->parameters, "parameters");
  Tokens(client, {1, 2});
  // Its rank is lost: it continues after its tokens, without the hand-off.
  OpenEpoch();
  EXPECT_EQ(Needs(client), kDecodes);
  EXPECT_EQ(WaitingSpec(client).computed_tokens, 0);
  EXPECT_EQ(PlaceOne().hand_off, nullptr);
  EXPECT_EQ(totals().handed_over, 1);
  EXPECT_EQ(totals().preempted, 0);
}

TEST_F(HandOffTest, OneThatWaitsTooLongIsDroppedAndThePromptIsComputedAnew) {
  Client& client = Arrive(Request("a"));
  PlaceOne();
  HandOver(client, "parameters");
  EXPECT_EQ(requests_->next_deadline(), now_ + kHandOffAge);
  PassTime(kHandOffAge - absl::Milliseconds(1));
  EXPECT_EQ(Needs(client), kDecodes);
  EXPECT_EQ(requests_->HandOffsWaiting(), std::pair(int64_t{1}, kHandOffAge - absl::Milliseconds(1)));
  PassTime(absl::Milliseconds(1));
  EXPECT_EQ(Needs(client), kHandsOver);
  EXPECT_EQ(WaitingSpec(client).computed_tokens, 0);
  EXPECT_EQ(totals().hand_offs_expired, 1);
  EXPECT_EQ(requests_->HandOffsWaiting().first, 0);
  EXPECT_TRUE(client.open());
}

TEST_F(HandOffTest, ARankThatCannotUseItCostsANewPromptAndAfterSomeNoHandOffIsMade) {
  Client& client = Arrive(Request("a"));
  for (int i = 0; i < kMostHandOffs; ++i) {
    EXPECT_EQ(Needs(client), kHandsOver) << i;
    PlaceOne();
    HandOver(client, "parameters");
    EXPECT_NE(PlaceOne().hand_off, nullptr);
    Refuse(client);
  }
  EXPECT_EQ(totals().hand_offs_failed, kMostHandOffs);
  EXPECT_EQ(Needs(client), kDecodes);
  EXPECT_EQ(WaitingSpec(client).computed_tokens, 0);
  EXPECT_EQ(PlaceOne().hand_off, nullptr);
}

// A server may be healthy, and answer each prompt with 503.
TEST_F(HandOffTest, APromptThatIsRefusedForLongIsComputedWhereItIsDecoded) {
  Client& client = Arrive(Request("a"));
  for (int i = 0; i <= kMostHandOffs; ++i) {
    EXPECT_EQ(Needs(client), kHandsOver) << i;
    PlaceOne();
    Refuse(client);
  }
  EXPECT_EQ(Needs(client), kDecodes);
  EXPECT_EQ(PlaceOne().hand_off, nullptr);
}

TEST_F(HandOffTest, AGatewaysIsUsedOnceAndOnlyIfItIsTrustedAndNamesAPrefillServer) {
  const auto from = [&](const std::string& id, const std::string& engine, bool trusted = true) {
    ClientRequest request = Request(id);
    request.hand_off = std::make_shared<const RequestHandOff>(
        RequestHandOff{.parameters = "own", .engine = engine, .name = "kv-7", .trusted = trusted});
    return request;
  };
  requests_->SetGroups({.capacities = {Capacity()},
                        .complete = true,
                        .ranks = {{0, 1}},
                        .hands_over = true,
                        .prefill_engines = {"p", "q_dp"}});
  EXPECT_TRUE(absl::IsInvalidArgument(*Arrive(from("untrusted", "p", false)).status));
  EXPECT_TRUE(absl::IsInvalidArgument(*Arrive(from("unknown", "x")).status));
  EXPECT_TRUE(absl::IsInvalidArgument(*Arrive(from("unnamed", "")).status));
  Client& client = Arrive(from("a", "p_dp1"));
  EXPECT_EQ(Needs(client), kDecodes);
  EXPECT_EQ(WaitingSpec(client).computed_tokens, 2);
  EXPECT_EQ(requests_->next_deadline(), now_ + kHandOffAge);
  EXPECT_TRUE(absl::IsInvalidArgument(*Arrive(from("again", "p_dp1")).status));
  EXPECT_EQ(PlaceOne().hand_off->parameters, "own");
  Refuse(client);
  EXPECT_EQ(Needs(client), kHandsOver) << "the prompt is computed anew";
  // Another one waits too long.
  Client& late = Arrive(from("b", "q_dp"));
  PassTime(kHandOffAge);
  EXPECT_EQ(Needs(late), kHandsOver);
  EXPECT_EQ(totals().hand_offs_expired, 1);
}

// What still comes of a call that waited for a prompt that has failed is nobody's.
TEST_F(HandOffTest, WhereARankWaitsForThePromptBothCallsBeginAndEndTogether) {
  requests_->SetGroups({.capacities = {Capacity()},
                        .complete = true,
                        .ranks = {{0, 1}},
                        .hands_over = true,
                        .in_parallel = true,
                        .computes_none = true});
  Client& client = Arrive(Request("a"));
  const Assignment prompt = PlaceOne(), decode = PlaceOne();
  EXPECT_TRUE(prompt.hands_over);
  EXPECT_NE(prompt.id, client.id());
  EXPECT_EQ(decode.id, client.id());
  EXPECT_FALSE(decode.hands_over);
  EXPECT_EQ(decode.hand_off->meeting, prompt.hand_off->meeting);
  const std::vector<core::RequestId> ids = {prompt.id};
  core::StepReport report = {.step = ++step_};
  report.preempted = ids;
  EXPECT_TRUE(cluster_->Apply(core::Report{0, 0, report}).status.ok());
  requests_->OnPreempted(prompt.id, now_);
  Tokens(client, {7});
  Finish(client);
  EXPECT_TRUE(client.open());
  EXPECT_THAT(client.tokens, IsEmpty());
  const Assignment prompt2 = PlaceOne(), decode2 = PlaceOne();
  EXPECT_NE(prompt2.id, prompt.id);
  EXPECT_NE(decode2.id, decode.id);
  EXPECT_NE(decode2.hand_off->meeting, decode.hand_off->meeting);
  requests_->OnFinished(prompt2.id, FinishReason::kLength, now_);
  requests_->OnTokens(decode2.id, std::vector<uint32_t>{8}, {}, now_);
  EXPECT_THAT(client.tokens, ElementsAre(8));
  // The client leaves.
  Cancel(client);
  EXPECT_THAT(Dropped(), Contains(decode2.id));
}

TEST_F(HandOffTest, RanksThatComputeNothingAreWaitedForUntilOthersServe) {
  const auto serve = [&](int32_t ranks, bool computes_none) {
    requests_->SetGroups({.capacities = {Capacity()},
                          .complete = true,
                          .ranks = {{0, ranks}},
                          .computes_none = computes_none});
  };
  serve(1, true);
  Client& client = Arrive(Request("a"));
  EXPECT_EQ(Needs(client), kHandsOver);
  serve(0, false);
  EXPECT_EQ(Needs(client), kHandsOver);
  serve(1, false);
  EXPECT_EQ(Needs(client), kDecodes);
  EXPECT_FALSE(requests_->computes_none());
}

TEST_F(HandOffTest, WhereNothingIsHandedOverTheDecodingRankComputesThePrompt) {
  // Far more than the blocks of a prompt take is no hand-off.
  for (const size_t bytes : {size_t{0}, 2 * kHandOffBytes}) {
    Client& client = Arrive(Request(absl::StrCat("a", bytes)));
    PlaceOne();
    HandOver(client, std::string(bytes, 'x'));
    EXPECT_EQ(Needs(client), kDecodes);
    EXPECT_EQ(WaitingSpec(client).computed_tokens, 0);
    EXPECT_EQ(PlaceOne().hand_off, nullptr);
  }
  // A single token is the prefill's own.
  EXPECT_EQ(Needs(Arrive(Request("b", 1))), kDecodes);
  ClientRequest logprobs = Request("logprobs");
  logprobs.passed.no_hand_off = true;
  EXPECT_EQ(Needs(Arrive(logprobs)), kDecodes);
  // No rank computes prompts for others any more; those that wait keep their order.
  Client &waiting = Arrive(Request("c")), &behind = Arrive(Request("d"));
  EXPECT_EQ(Needs(waiting), kHandsOver);
  Serve(false);
  EXPECT_EQ(Needs(waiting), kDecodes);
  EXPECT_EQ(requests_->next_deadline(), now_ + RequestOptions().max_queue_time)
      << "it still has its deadline";
  EXPECT_EQ(cluster_->pool().views().views()[0].id, waiting.id());
  EXPECT_EQ(cluster_->pool().views().views()[1].id, behind.id());
}

}  // namespace
}  // namespace bfio::router
