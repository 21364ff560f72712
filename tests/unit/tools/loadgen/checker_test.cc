#include "tools/loadgen/checker.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bfio::loadgen {
namespace {

using ::testing::HasSubstr;
using Finish = StreamMessage::Finish;

constexpr Finish kGoodFinish = {
    .reason_is_length = true, .has_usage = true, .prompt_tokens = 100, .completion_tokens = 4};

class CheckerTest : public ::testing::Test {
 protected:
  void Tokens(uint32_t first_index, uint32_t count) {
    checker_.OnMessage({.first_index = first_index, .tokens = count});
  }
  void End(const Finish& finish) { checker_.OnMessage({.finish = finish}); }

  // A request of 100 prompt tokens and 4 tokens to generate.
  StreamChecker checker_{"r1", 100, 4};
};

TEST_F(CheckerTest, AValidStreamPasses) {
  checker_.OnMessage({.request_id = "r1", .first_index = 0, .tokens = 1});
  Tokens(1, 2);
  checker_.OnMessage({});  // an empty message is valid
  Tokens(3, 1);
  End(kGoodFinish);
  checker_.OnEnd(StreamChecker::End::kOk);
  EXPECT_EQ(checker_.breach(), "");
  EXPECT_EQ(checker_.tokens(), 4u);
}

TEST(OpenEndedChecker, TheModelMayEndItAfterAtLeastOneToken) {
  const auto breach = [](uint32_t tokens, bool stop) {
    StreamChecker checker("r1", 100, 4, 0, true);
    checker.OnMessage({.tokens = tokens,
                       .finish = Finish{.reason_is_length = !stop,
                                        .reason_is_stop = stop,
                                        .has_usage = true,
                                        .prompt_tokens = 100,
                                        .completion_tokens = tokens}});
    checker.OnEnd(StreamChecker::End::kOk);
    return checker.breach();
  };
  EXPECT_EQ(breach(2, true), "");
  EXPECT_EQ(breach(4, false), "");
  EXPECT_EQ(breach(4, true), "") << "its last token was the end";
  EXPECT_THAT(breach(2, false), HasSubstr("finished after 2 tokens"));
  EXPECT_THAT(breach(0, true), HasSubstr("finished after 0 tokens"));
  EXPECT_THAT(breach(5, true), HasSubstr("5 tokens, 4 asked for"));
}

TEST_F(CheckerTest, TokensMayComeWithTheFinish) {
  checker_.OnMessage({.first_index = 0, .tokens = 4, .finish = kGoodFinish});
  checker_.OnEnd(StreamChecker::End::kOk);
  EXPECT_EQ(checker_.breach(), "");
}

TEST_F(CheckerTest, AnErrorIsNotABreachByItself) {
  Tokens(0, 2);
  checker_.OnEnd(StreamChecker::End::kError);
  EXPECT_EQ(checker_.breach(), "");
}

TEST_F(CheckerTest, AGapIsABreach) {
  Tokens(0, 1);
  Tokens(2, 1);
  EXPECT_THAT(checker_.breach(), HasSubstr("request r1: token index 2 where 1 was due"));
}

TEST_F(CheckerTest, ARepetitionIsABreach) {
  Tokens(0, 2);
  Tokens(1, 1);
  EXPECT_THAT(checker_.breach(), HasSubstr("token index 1 where 2 was due"));
}

TEST_F(CheckerTest, AStreamThatDoesNotStartAtZeroIsABreach) {
  Tokens(1, 1);
  EXPECT_THAT(checker_.breach(), HasSubstr("token index 1 where 0 was due"));
}

TEST_F(CheckerTest, TooManyTokensAreABreach) {
  Tokens(0, 5);
  EXPECT_THAT(checker_.breach(), HasSubstr("5 tokens, 4 asked for"));
}

TEST_F(CheckerTest, TooFewTokensAreABreach) {
  Tokens(0, 3);
  End({.reason_is_length = true, .has_usage = true, .prompt_tokens = 100, .completion_tokens = 3});
  EXPECT_THAT(checker_.breach(), HasSubstr("finished after 3 tokens, 4 asked for"));
}

TEST_F(CheckerTest, AnotherReasonThanLengthIsABreach) {
  Tokens(0, 4);
  End({.reason_is_length = false, .has_usage = true, .prompt_tokens = 100, .completion_tokens = 4});
  EXPECT_THAT(checker_.breach(), HasSubstr("another reason"));
}

TEST_F(CheckerTest, MissingOrWrongUsageIsABreach) {
  for (const Finish& finish :
       {Finish{.reason_is_length = true},
        Finish{.reason_is_length = true, .has_usage = true, .completion_tokens = 4},
        Finish{.reason_is_length = true, .has_usage = true, .prompt_tokens = 100, .completion_tokens = 5}}) {
    StreamChecker checker("r1", 100, 4);
    checker.OnMessage({.first_index = 0, .tokens = 4, .finish = finish});
    EXPECT_THAT(checker.breach(), HasSubstr("usage"));
  }
}

TEST_F(CheckerTest, ASecondFinishIsABreach) {
  Tokens(0, 4);
  End(kGoodFinish);
  End(kGoodFinish);
  EXPECT_THAT(checker_.breach(), HasSubstr("a message after the finish"));
}

TEST_F(CheckerTest, AnOkStatusWithoutFinishIsABreach) {
  Tokens(0, 4);
  checker_.OnEnd(StreamChecker::End::kOk);
  EXPECT_THAT(checker_.breach(), HasSubstr("without a finish"));
}

TEST_F(CheckerTest, AnErrorAfterTheFinishIsABreach) {
  Tokens(0, 4);
  End(kGoodFinish);
  checker_.OnEnd(StreamChecker::End::kError);
  EXPECT_THAT(checker_.breach(), HasSubstr("error after the finish"));
}

TEST_F(CheckerTest, AConnectionLostAfterTheFinishIsNotABreach) {
  Tokens(0, 4);
  EXPECT_FALSE(checker_.finished());
  End(kGoodFinish);
  EXPECT_TRUE(checker_.finished());
  checker_.OnEnd(StreamChecker::End::kConnectionLost);
  EXPECT_EQ(checker_.breach(), "");
}

TEST_F(CheckerTest, AnotherRequestsMessageIsABreach) {
  checker_.OnMessage({.request_id = "r2", .first_index = 0, .tokens = 1});
  EXPECT_THAT(checker_.breach(), HasSubstr("a message of request r2"));
}

TEST_F(CheckerTest, TheFirstBreachIsKept) {
  Tokens(1, 1);
  Tokens(9, 1);
  checker_.OnEnd(StreamChecker::End::kOk);
  EXPECT_THAT(checker_.breach(), HasSubstr("token index 1"));
}

}  // namespace
}  // namespace bfio::loadgen
