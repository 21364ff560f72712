// Requests that lose their worker, and requests that make workers fail.
#include "router/requests/request_lifecycle.h"

#include <gmock/gmock.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/retry_delay.h"
#include "tests/unit/router/requests/request_lifecycle_fixture.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(RequestLifecycleTest, ALostRequestResumesAfterItsDeliveredTokens) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Request("a", 5));
  RecordingSink& young = Arrive(Request("young"));
  requests_->OnCancel(young.id(), false, now_);
  Place();
  Tokens(sink, {1, 2});
  OpenEpoch();  // the worker is a new process
  Arrive(Request("b"));
  const std::vector<Assignment> assignments = Place();
  ASSERT_EQ(assignments.size(), 2u);
  EXPECT_EQ(assignments[0].id, sink.id()) << "it goes before those that have not begun";
  EXPECT_EQ(assignments[0].first_index, 2u);
  EXPECT_THAT(*assignments[0].history, ElementsAre(1, 2));
  Tokens(sink, {3, 4, 5});
  requests_->OnFinished(sink.id(), FinishReason::kLength, now_);
  EXPECT_THAT(sink.tokens, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(sink.finish->completion_tokens, 5u);
  EXPECT_EQ(requests_->totals().replayed, 1);
}

TEST_F(RequestLifecycleTest, TwoDeathsRunARequestAloneAndThreeEndIt) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Request("a"));
  Place();
  Die();
  EXPECT_EQ(WaitingSpec(sink.id()).steps_alone, 0) << "one death may be anybody's";
  Place();
  Die();
  EXPECT_GT(WaitingSpec(sink.id()).steps_alone, 0);
  Place();
  EXPECT_TRUE(sink.open());
  Die();
  EXPECT_EQ(*sink.status,
            absl::InternalError("3 workers failed one after another while they ran this request"));
  EXPECT_EQ(requests_->totals().suspects_ended, 1);
  EXPECT_EQ(requests_->totals().replays_refused, 1);
  EXPECT_EQ(requests_->totals().failed, 1);
  EXPECT_EQ(cluster_->waiting(), 0);
}

TEST_F(RequestLifecycleTest, OnlyDeathsWhileTheRequestWasPlacedCount) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Request("a"));
  for (int i = 0; i < 10; ++i) {
    // The request waits when the worker dies; then it is lost for another reason: its plan had not arrived.
    requests_->OnWorkerDied(0, 0);
    Place();
    requests_->OnWorkerDied(0, 1);
    OpenEpoch();
  }
  EXPECT_TRUE(sink.open());
  EXPECT_EQ(WaitingSpec(sink.id()).steps_alone, 0);
  EXPECT_EQ(requests_->totals().replayed, 10);
}

TEST_F(RequestLifecycleTest, TokensClearASuspectWhetherAloneOrNot) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Request("a", 480));
  const std::vector<uint32_t> enough(Suspicion::kTokensThatClear, 7);
  for (int i = 0; i < 6; ++i) {
    Place();
    Die();
    Place();
    Tokens(sink, enough);
    Die();
    EXPECT_EQ(WaitingSpec(sink.id()).steps_alone, 0) << "a worker that flaps makes no suspects";
  }
  Place();
  Die();
  ASSERT_GT(WaitingSpec(sink.id()).steps_alone, 0);
  Place();
  Tokens(sink, enough);
  requests_->OnPreempted(sink.id(), now_);
  EXPECT_TRUE(sink.open());
}

TEST_F(RequestLifecycleTest, ARequestThatKillsWorkersLateIsEventuallyEnded) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Request("a", 480));
  int deaths = 0;
  for (; sink.open() && deaths < 100; ++deaths) {
    Place();
    Tokens(sink, {7});
    Tokens(sink, std::vector<uint32_t>(deaths < 10 ? Suspicion::kTokensThatClear : 1, 7));
    Die();
  }
  EXPECT_LE(deaths, Suspicion::kMost);
  EXPECT_TRUE(absl::IsInternal(*sink.status));
}

TEST(Suspicion, EndsAfterTheTotalNumberOfDeaths) {
  Suspicion suspicion;
  for (int i = 1; i < Suspicion::kMost; ++i) {
    suspicion.OnTokens(Suspicion::kTokensThatClear);
    suspicion.OnDeath();
    EXPECT_FALSE(suspicion.runs_alone() || suspicion.blamed());
  }
  suspicion.OnTokens(Suspicion::kTokensThatClear);
  suspicion.OnDeath();
  EXPECT_TRUE(suspicion.blamed());
}

TEST_F(RequestLifecycleTest, ALostFinishIsReconstructed) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Request("a", 2));
  Place();
  Tokens(sink, {1, 2});
  OpenEpoch();
  ASSERT_TRUE(sink.finish.has_value());
  EXPECT_EQ(sink.finish->reason, FinishReason::kLength);
}

TEST_F(RequestLifecycleTest, ARequestTooLargeToKeepIsNotReplayed) {
  RequestOptions options;
  options.resume.request_bytes = 20;  // bytes of three prompt tokens and two generated ones
  Start(options);
  OpenEpoch();
  RecordingSink& sink = Arrive(Request("a"));
  Place();
  Tokens(sink, {1, 2});
  EXPECT_EQ(requests_->kept_bytes(), 20);
  Tokens(sink, {3});
  EXPECT_EQ(requests_->kept_bytes(), 0);
  OpenEpoch();
  EXPECT_TRUE(absl::IsUnavailable(*sink.status));
  EXPECT_THAT(sink.status->message(), HasSubstr("too large"));
}

TEST_F(RequestLifecycleTest, RefusalsForLackOfKvAreRetriedForAWhile) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Request("a"));
  const absl::Status full = absl::ResourceExhaustedError("no KV");
  for (int i = 0; i < 15; ++i) requests_->OnRejected(sink.id(), full, now_);
  EXPECT_TRUE(sink.open());
  requests_->OnRejected(sink.id(), full, now_);
  EXPECT_TRUE(absl::IsUnavailable(*sink.status));
  EXPECT_EQ(GetRetryDelay(*sink.status), absl::Seconds(1));
  RecordingSink& broken = Arrive(Request("b"));
  requests_->OnRejected(broken.id(), absl::InternalError("the logits are not finite"), now_);
  EXPECT_TRUE(absl::IsInternal(*broken.status));
}

TEST_F(RequestLifecycleTest, APreemptedRequestKeepsItsTokens) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Request("a"));
  Place();
  Tokens(sink, {7});
  core::StepReport report = {.step = ++step_};
  const std::vector<core::RequestId> preempted = {sink.id()};
  report.preempted = preempted;
  ASSERT_TRUE(cluster_->Apply(core::Report{0, 0, report}).status.ok());
  requests_->OnPreempted(sink.id(), now_);
  EXPECT_EQ(cluster_->waiting(), 1);
  const std::vector<Assignment> again = Place();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].first_index, 1u);
}

// A worker derives its random stream from the token's index; an engine starts a new one with each call.
TEST_F(RequestLifecycleTest, SeededSamplingEndsWithItsEngineNotWithItsWorker) {
  const auto seeded = [](const std::string& name, std::optional<float> temperature) {
    ClientRequest request = Request(name);
    request.sampling.seed = 7;
    request.sampling.temperature = temperature;
    return request;
  };
  engines_ = true;
  OpenEpoch();
  RecordingSink& sampled = Arrive(seeded("a", 1));
  RecordingSink& greedy = Arrive(seeded("b", 0));
  RecordingSink& greedy_by_default = Arrive(seeded("e", std::nullopt));
  RecordingSink& without_tokens = Arrive(seeded("c", 1));
  Place();
  Tokens(sampled, {1});
  Tokens(greedy, {1});
  Tokens(greedy_by_default, {1});
  OpenEpoch();
  ASSERT_FALSE(sampled.open());
  EXPECT_TRUE(absl::IsUnavailable(*sampled.status));
  EXPECT_THAT(sampled.status->message(), HasSubstr("lost after 1 tokens"));
  EXPECT_THAT(sampled.status->message(), HasSubstr("seed"));
  EXPECT_TRUE(greedy.open());
  EXPECT_TRUE(greedy_by_default.open());
  EXPECT_TRUE(without_tokens.open());
  engines_ = false;
  OpenEpoch();
  RecordingSink& on_worker = Arrive(seeded("d", 1));
  Place();
  Tokens(on_worker, {1});
  OpenEpoch();
  EXPECT_TRUE(on_worker.open());
}

// --- requests that pass to engines as they came ---

class AMessage final : public Passed {
 public:
  AMessage() : Passed(40) {}
};

class PassingRequest : public RequestLifecycleTest {
 protected:
  PassingRequest() { engines_ = true; }
  // A request with a prompt of 3 tokens.
  RecordingSink& ArrivePassing(Passing passed, uint32_t max_new_tokens = 10) {
    ClientRequest request = Request("p", max_new_tokens);
    request.prompt.clear();
    request.passed = std::move(passed);
    request.passed.on = true;
    request.passed.message = message_;
    return Arrive(std::move(request));
  }
  void Message(const RecordingSink& sink, std::vector<uint32_t> tokens) {
    requests_->OnTokens(sink.id(), tokens, {}, now_, {message_});
  }
  PassedPtr message_ = std::make_shared<AMessage>();
};

TEST_F(PassingRequest, MessagesReachTheClientAndTokensAreCounted) {
  OpenEpoch();
  RecordingSink& sink = ArrivePassing({});
  EXPECT_EQ(Place()[0].request->passed.message, message_);
  Message(sink, {});
  Message(sink, {5, 6});
  EXPECT_EQ(sink.passed.size(), 2u);
  EXPECT_TRUE(sink.tokens.empty());
  // Fewer tokens than requested: the engine has its own limit.
  requests_->OnFinished(sink.id(), FinishReason::kLength, now_);
  EXPECT_TRUE(sink.status->ok());
  EXPECT_EQ(sink.finish->completion_tokens, 2u);
}

TEST_F(PassingRequest, ARequestThatCannotContinueEndsWithItsEngine) {
  OpenEpoch();
  RecordingSink& sink = ArrivePassing({});
  Place();
  OpenEpoch();
  EXPECT_TRUE(sink.open()) << "it has not begun";
  Place();
  Message(sink, {5});
  OpenEpoch();
  ASSERT_FALSE(sink.open());
  EXPECT_TRUE(absl::IsUnavailable(*sink.status));
  EXPECT_THAT(sink.status->message(), HasSubstr("lost after 1 tokens"));
  EXPECT_EQ(cluster_->waiting(), 0);
}

TEST_F(PassingRequest, AContinuableRequestCarriesItsTokens) {
  OpenEpoch();
  RecordingSink& sink = ArrivePassing({.continues = true});
  Place();
  Message(sink, {5, 6});
  OpenEpoch();
  EXPECT_TRUE(sink.open());
  const std::vector<Assignment> assignments = Place();
  EXPECT_THAT(*assignments[0].history, ElementsAre(5, 6));
  EXPECT_EQ(assignments[0].first_index, 2u);
}

// Its client has not received any tokens.
TEST_F(PassingRequest, AWholeOutputStartsAgain) {
  OpenEpoch();
  RecordingSink& sink = ArrivePassing({.whole = true});
  Place();
  Tokens(sink, {0, 0, 0});
  EXPECT_TRUE(sink.tokens.empty());
  OpenEpoch();
  EXPECT_EQ(WaitingSpec(sink.id()).prefill_tokens, 3);
  const std::vector<Assignment> assignments = Place();
  EXPECT_EQ(assignments[0].first_index, 0u);
  EXPECT_TRUE(assignments[0].history->empty());
  Message(sink, {0, 0, 0, 0});
  requests_->OnFinished(sink.id(), FinishReason::kStop, now_);
  EXPECT_EQ(sink.passed.size(), 1u);
  EXPECT_EQ(sink.finish->completion_tokens, 4u);
  EXPECT_EQ(requests_->latencies().latencies().time_per_output_token_s.count(), 0u) << "it is not known";
}

TEST_F(PassingRequest, EstimatedTokensDoNotClearASuspect) {
  OpenEpoch();
  RecordingSink& sink = ArrivePassing({.whole = true}, 400);
  const std::vector<uint32_t> estimated(Suspicion::kTokensThatClear, 0);
  int deaths = 0;
  for (; sink.open() && deaths < 100; ++deaths) {
    Place();
    Tokens(sink, estimated);
    Die();
  }
  EXPECT_EQ(deaths, Suspicion::kBlamed);
}

TEST_F(PassingRequest, AWholeOutputThatNoEngineBringsIsGivenUp) {
  OpenEpoch();
  RecordingSink& sink = ArrivePassing({.whole = true}, 400);
  int tries = 0;
  for (; sink.open() && tries < 100; ++tries) {
    Place();
    Tokens(sink, {0});
    requests_->OnPreempted(sink.id(), now_);
    OpenEpoch();
  }
  EXPECT_LT(tries, 100);
  EXPECT_TRUE(absl::IsUnavailable(*sink.status));
}

TEST_F(PassingRequest, AWholeOutputCountsTheTokensThatTheEngineReports) {
  OpenEpoch();
  RecordingSink& sink = ArrivePassing({.whole = true}, 400);
  Place();
  Tokens(sink, std::vector<uint32_t>(50, 0));
  requests_->OnFinished(sink.id(), FinishReason::kStop, now_, 20);
  EXPECT_EQ(sink.finish->completion_tokens, 20u);
}

TEST_F(PassingRequest, AMessageThatNoEngineCouldUseIsNotKept) {
  OpenEpoch();
  RecordingSink& sink = ArrivePassing({});
  std::weak_ptr<const Passed> message = message_;
  message_ = nullptr;
  Place();
  EXPECT_FALSE(message.expired()) << "another engine may need it";
  requests_->OnTokens(sink.id(), {{5}}, {}, now_, {});
  EXPECT_TRUE(message.expired());
}

TEST_F(PassingRequest, WithoutSuchEnginesItIsRefused) {
  OpenEpoch();
  GroupsView view = {.max_sequence_tokens = 500};
  requests_->SetGroups(view);
  EXPECT_TRUE(absl::IsInvalidArgument(*ArrivePassing({}).status));
}

}  // namespace
}  // namespace bfio::router
