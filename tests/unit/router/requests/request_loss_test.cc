// Requests that lose their worker, that make workers fail, or whose messages pass through. That a request
// continues with its next token wherever it is placed again, tests/property/group_model_test.cc shows.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/router/requests/request_lifecycle_fixture.h"

namespace bfio::router {
namespace {

using absl::StatusCode;
using ::testing::ElementsAre;
using ::testing::SizeIs;

TEST_F(RequestLifecycleTest, ALostRequestGoesBeforeThoseThatHaveNotBegun) {
  OpenEpoch();
  Client &client = Arrive(Request("a", 5)), &done = Arrive(Request("done", 2));
  Place();
  Tokens(client, {1, 2});
  Tokens(done, {1, 2});
  OpenEpoch();  // the worker is a new process
  ASSERT_TRUE(done.finish.has_value()) << "only its finish was lost";
  EXPECT_EQ(done.finish->reason, FinishReason::kLength);
  Arrive(Request("b"));
  const std::vector<Assignment> assignments = Place();
  ASSERT_THAT(assignments, SizeIs(2));
  EXPECT_EQ(assignments[0].id, client.id());
  EXPECT_EQ(assignments[0].first_index, 2u);
  EXPECT_THAT(*assignments[0].history, ElementsAre(1, 2));
  EXPECT_EQ(totals().replayed, 1);
}

TEST_F(RequestLifecycleTest, TwoDeathsRunARequestAloneAndThreeEndIt) {
  Client& client = Running(Request("a"));
  Die();
  EXPECT_EQ(WaitingSpec(client).steps_alone, 0) << "one death may be anybody's";
  Place();
  Die();
  EXPECT_GT(WaitingSpec(client).steps_alone, 0);
  Place();
  EXPECT_TRUE(client.open());
  Die();
  EXPECT_EQ(*client.status,
            absl::InternalError("3 workers failed one after another while they ran this request"));
  EXPECT_EQ(totals().suspects_ended, 1);
  EXPECT_EQ(totals().replays_refused, 1);
  EXPECT_EQ(totals().failed, 1);
  EXPECT_EQ(cluster_->waiting(), 0);
}

TEST_F(RequestLifecycleTest, OnlyDeathsWhileTheRequestWasPlacedCount) {
  OpenEpoch();
  Client& client = Arrive(Request("a"));
  for (int i = 0; i < 10; ++i) {
    // The request waits when the worker dies; then it is lost for another reason: its plan had not arrived.
    requests_->OnWorkerDied(0, 0);
    Place();
    requests_->OnWorkerDied(0, 1);
    OpenEpoch();
  }
  EXPECT_EQ(WaitingSpec(client).steps_alone, 0);
  EXPECT_EQ(totals().replayed, 10);
}

TEST_F(RequestLifecycleTest, TokensClearASuspectWhetherAloneOrNot) {
  OpenEpoch();
  Client& client = Arrive(Request("a", 480));
  const std::vector<uint32_t> enough(Suspicion::kTokensThatClear, 7);
  for (int i = 0; i < 6; ++i) {
    Place();
    Die();
    Place();
    Tokens(client, enough);
    Die();
    EXPECT_EQ(WaitingSpec(client).steps_alone, 0) << "a worker that flaps makes no suspects";
  }
  Place();
  Die();
  ASSERT_GT(WaitingSpec(client).steps_alone, 0);
  Place();
  Tokens(client, enough);
  requests_->OnPreempted(client.id(), now_);
  EXPECT_TRUE(client.open());
}

TEST_F(RequestLifecycleTest, ARequestThatKillsWorkersLateIsEventuallyEnded) {
  OpenEpoch();
  Client& client = Arrive(Request("a", 480));
  int deaths = 0;
  for (; client.open() && deaths < 100; ++deaths) {
    Place();
    Tokens(client, std::vector<uint32_t>(deaths < 10 ? Suspicion::kTokensThatClear + 1 : 2, 7));
    Die();
  }
  EXPECT_LE(deaths, Suspicion::kMost);
  EXPECT_TRUE(absl::IsInternal(*client.status));
  Suspicion suspicion;
  for (int i = 1; i <= Suspicion::kMost; ++i) {
    EXPECT_FALSE(suspicion.runs_alone() || suspicion.blamed());
    suspicion.OnTokens(Suspicion::kTokensThatClear);
    suspicion.OnDeath();
  }
  EXPECT_TRUE(suspicion.blamed());
}

TEST_F(RequestLifecycleTest, ARequestTooLargeToKeepIsNotReplayed) {
  RequestOptions options;
  options.resume.request_bytes = 20;  // bytes of three prompt tokens and two generated ones
  Start(options);
  Client& client = Running(Request("a"));
  Tokens(client, {1, 2});
  EXPECT_EQ(requests_->kept_bytes(), 20);
  Tokens(client, {3});
  EXPECT_EQ(requests_->kept_bytes(), 0);
  OpenEpoch();
  EXPECT_THAT(client, EndsForNow(StatusCode::kUnavailable, "too large"));
}

TEST_F(RequestLifecycleTest, RefusalsForLackOfKvAreRetriedForAWhile) {
  OpenEpoch();
  Client& client = Arrive(Request("a"));
  for (int i = 0; i < 15; ++i) Reject(client);
  EXPECT_TRUE(client.open());
  Reject(client);
  EXPECT_THAT(client, EndsForNow(StatusCode::kUnavailable, ""));
  EXPECT_EQ(GetRetryDelay(*client.status), absl::Seconds(1));
  Client& broken = Arrive(Request("b"));
  Reject(broken, absl::InternalError("the logits are not finite"));
  EXPECT_TRUE(absl::IsInternal(*broken.status));
}

// A worker derives its random stream from the token's index; an engine starts a new one with each call.
TEST_F(RequestLifecycleTest, SeededSamplingEndsWithItsEngineNotWithItsWorker) {
  const auto seeded = [&](const std::string& name, std::optional<float> temperature) -> Client& {
    ClientRequest request = Request(name);
    request.sampling.seed = 7;
    request.sampling.temperature = temperature;
    return Arrive(request);
  };
  engines_ = true;
  OpenEpoch();
  Client &sampled = seeded("a", 1), &greedy = seeded("b", 0), &greedy_by_default = seeded("e", std::nullopt);
  Client& without_tokens = seeded("c", 1);
  Place();
  for (const Client* client : {&sampled, &greedy, &greedy_by_default}) Tokens(*client, {1});
  OpenEpoch();
  EXPECT_THAT(sampled, EndsForNow(StatusCode::kUnavailable, "lost after 1 tokens"));
  EXPECT_THAT(sampled, EndsForNow(StatusCode::kUnavailable, "seed"));
  EXPECT_TRUE(greedy.open() && greedy_by_default.open() && without_tokens.open());
  engines_ = false;
  OpenEpoch();
  Client& on_worker = seeded("d", 1);
  Place();
  Tokens(on_worker, {1});
  OpenEpoch();
  EXPECT_TRUE(on_worker.open());
}

// --- request passing ---

// Requests that pass to engines as they came.

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
