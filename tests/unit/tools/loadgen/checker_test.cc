#include "tools/loadgen/checker.h"

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"

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
  EXPECT_THAT(breach(5, true), HasSubstr("5 tokens came, 4 were requested"));
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

TEST(StreamCheckerBreach, EveryMessageOrEndThatDoesNotFollowIsOne) {
  using End = StreamChecker::End;
  const StreamMessage all = {.tokens = 4};
  const StreamMessage finish = {.finish = kGoodFinish};
  const auto usage = [](uint32_t prompt, uint32_t completion, bool length = true) {
    return StreamMessage{.finish = Finish{.reason_is_length = length,
                                          .has_usage = true,
                                          .prompt_tokens = prompt,
                                          .completion_tokens = completion}};
  };
  const struct {
    std::vector<StreamMessage> messages;
    std::optional<End> end;
    std::string want;
  } cases[] = {
      {{{.tokens = 1}, {.first_index = 2, .tokens = 1}},
       {},
       "request r1: token index 2 came where 1 was expected"},
      {{{.tokens = 2}, {.first_index = 1, .tokens = 1}}, {}, "token index 1 came where 2 was expected"},
      {{{.first_index = 1, .tokens = 1}}, {}, "token index 1 came where 0 was expected"},
      {{{.tokens = 5}}, {}, "5 tokens came, 4 were requested"},
      {{{.tokens = 3}, usage(100, 3)}, {}, "finished after 3 tokens, 4 were requested"},
      {{all, usage(100, 4, false)}, {}, "not the requested length limit"},
      {{all, {.finish = Finish{.reason_is_length = true}}}, {}, "usage"},
      {{all, usage(0, 4)}, {}, "usage"},
      {{all, usage(100, 5)}, {}, "usage"},
      {{all, finish, finish}, {}, "a message came after the finish"},
      {{all}, End::kOk, "without a finish"},
      {{all, finish}, End::kError, "error after the finish"},
      {{{.request_id = "r2", .tokens = 1}}, {}, "another request, r2"},
      // The first is kept.
      {{{.first_index = 1, .tokens = 1}, {.first_index = 9, .tokens = 1}}, End::kOk, "token index 1 "},
  };
  for (const auto& broken : cases) {
    StreamChecker checker("r1", 100, 4);
    for (const StreamMessage& message : broken.messages) checker.OnMessage(message);
    if (broken.end) checker.OnEnd(*broken.end);
    EXPECT_THAT(checker.breach(), HasSubstr(broken.want));
  }
}

TEST_F(CheckerTest, AConnectionLostAfterTheFinishIsNotABreach) {
  Tokens(0, 4);
  EXPECT_FALSE(checker_.finished());
  End(kGoodFinish);
  EXPECT_TRUE(checker_.finished());
  checker_.OnEnd(StreamChecker::End::kConnectionLost);
  EXPECT_EQ(checker_.breach(), "");
}

}  // namespace
}  // namespace bfio::loadgen
