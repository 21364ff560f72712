// Requests that pass to engines as they came.
#include <memory>
#include <utility>
#include <vector>

#include "tests/unit/router/requests/request_lifecycle_fixture.h"

namespace bfio::router {
namespace {

using absl::StatusCode;
using ::testing::ElementsAre;
using ::testing::SizeIs;

class AMessage final : public Passed {
 public:
  AMessage() : Passed(40) {}
};

class PassingRequest : public RequestLifecycleTest {
 protected:
  void SetUp() override {
    engines_ = true;
    RequestLifecycleTest::SetUp();
    OpenEpoch();
  }
  // A request with a prompt of 3 tokens.
  Client& ArrivePassing(Passing passed, uint32_t max_new_tokens = 10) {
    ClientRequest request = Request("p", max_new_tokens);
    request.prompt.clear();
    request.passed = std::move(passed);
    request.passed.on = true;
    request.passed.message = message_;
    return Arrive(std::move(request));
  }
  void Message(const Client& client, std::vector<uint32_t> tokens) {
    requests_->OnTokens(client.id(), tokens, {}, now_, {message_});
  }
  PassedPtr message_ = std::make_shared<AMessage>();
};

TEST_F(PassingRequest, MessagesReachTheClientAndTokensAreCounted) {
  Client& client = ArrivePassing({});
  EXPECT_EQ(Place()[0].request->passed.message, message_);
  Message(client, {});
  Message(client, {5, 6});
  EXPECT_THAT(client.passed, SizeIs(2));
  EXPECT_TRUE(client.tokens.empty());
  // Fewer tokens than requested: the engine has its own limit.
  Finish(client);
  EXPECT_TRUE(client.status->ok());
  EXPECT_EQ(client.finish->completion_tokens, 2u);
}

TEST_F(PassingRequest, OnlyAContinuableRequestContinuesOnAnotherEngine) {
  Client& client = ArrivePassing({.continues = true});
  Place();
  Message(client, {5, 6});
  OpenEpoch();
  EXPECT_TRUE(client.open());
  const std::vector<Assignment> assignments = Place();
  EXPECT_THAT(*assignments[0].history, ElementsAre(5, 6));
  EXPECT_EQ(assignments[0].first_index, 2u);
  Cancel(client);
  message_ = std::make_shared<AMessage>();
  Client& other = ArrivePassing({});
  Place();
  OpenEpoch();
  EXPECT_TRUE(other.open()) << "it has not begun";
  std::weak_ptr<const Passed> message = std::exchange(message_, nullptr);
  Place();
  EXPECT_FALSE(message.expired()) << "another engine may need it";
  Tokens(other, {5});
  EXPECT_TRUE(message.expired()) << "no engine could use it";
  OpenEpoch();
  EXPECT_THAT(other, EndsForNow(StatusCode::kUnavailable, "lost after 1 tokens"));
  EXPECT_EQ(cluster_->waiting(), 0);
}

// Its client has not received any tokens.
TEST_F(PassingRequest, AnOutputThatItsClientHasNotSeenStartsAgain) {
  Client& client = ArrivePassing({.starts_again = true});
  Place();
  Message(client, {5, 6, 7});
  EXPECT_THAT(client.passed, SizeIs(1));
  OpenEpoch();
  EXPECT_TRUE(client.passed.empty());
  EXPECT_EQ(WaitingSpec(client).prefill_tokens, 3);
  const std::vector<Assignment> assignments = Place();
  EXPECT_EQ(assignments[0].first_index, 0u);
  EXPECT_TRUE(assignments[0].history->empty());
  Message(client, {5, 6, 7, 8});
  Finish(client, FinishReason::kStop);
  EXPECT_THAT(client.passed, SizeIs(1));
  EXPECT_EQ(client.finish->completion_tokens, 4u);
}

TEST_F(PassingRequest, TokensThatNobodyHereHasSeenCountAtTheEnd) {
  Client& client = ArrivePassing({}, 400);
  Place();
  requests_->OnFinished(client.id(), FinishReason::kStop, now_, 20);
  EXPECT_EQ(client.finish->completion_tokens, 20u);
  EXPECT_EQ(requests_->latencies().latencies().time_per_output_token_s.count(), 0u) << "it is not known";
}

TEST_F(PassingRequest, AnOutputThatStartsAgainAndAgainIsGivenUp) {
  Client& client = ArrivePassing({.starts_again = true}, 400);
  int tries = 0;
  for (; client.open() && tries < 100; ++tries) {
    Place();
    Tokens(client, {0});
    requests_->OnPreempted(client.id(), now_);
    OpenEpoch();
  }
  EXPECT_LT(tries, 100);
  EXPECT_TRUE(absl::IsUnavailable(*client.status));
}

TEST_F(PassingRequest, WithoutSuchEnginesItIsRefused) {
  engines_ = false;
  requests_->SetGroups({.capacities = {Capacity()}});
  EXPECT_TRUE(absl::IsInvalidArgument(*ArrivePassing({}).status));
}

}  // namespace
}  // namespace bfio::router
