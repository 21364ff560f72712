#include "tools/loadgen/client_stream.h"

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"

namespace bfio::loadgen {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

v1::GenerateResponse Tokens(uint32_t first_index, int count, const std::string& id = "") {
  v1::GenerateResponse message;
  message.set_request_id(id);
  message.set_first_index(first_index);
  for (int i = 0; i < count; ++i) message.add_token_ids(7);
  return message;
}

v1::GenerateResponse Finish(uint32_t prompt, uint32_t completion,
                            v1::FinishReason reason = v1::FINISH_REASON_LENGTH,
                            v1::GenerateResponse message = {}) {
  message.mutable_finish()->set_reason(reason);
  message.mutable_finish()->mutable_usage()->set_prompt_tokens(prompt);
  message.mutable_finish()->mutable_usage()->set_completion_tokens(completion);
  return message;
}

// The breach of a request of 100 prompt tokens and 4 tokens to generate.
std::string BreachOf(const std::vector<v1::GenerateResponse>& messages, std::optional<Code> end,
                     bool open_ended = false) {
  StreamChecker checker("r1", 100, 4, 0, open_ended);
  for (const v1::GenerateResponse& message : messages) checker.OnMessage(message);
  if (end) checker.OnEnd(*end);
  return checker.breach();
}

TEST(StreamChecker, AValidStreamPasses) {
  const v1::GenerateResponse empty, finish = Finish(100, 4);
  EXPECT_EQ(BreachOf({Tokens(0, 1, "r1"), Tokens(1, 2), empty, Tokens(3, 1), finish}, Code::kOk), "");
  EXPECT_EQ(BreachOf({Finish(100, 4, v1::FINISH_REASON_LENGTH, Tokens(0, 4))}, Code::kOk), "");
  EXPECT_EQ(BreachOf({Tokens(0, 2)}, Code::kInternal), "") << "an error is no breach by itself";
  EXPECT_EQ(BreachOf({Tokens(0, 4), finish}, Code::kUnavailable), "") << "the connection was lost";
}

TEST(StreamChecker, TheModelMayEndAnOpenEndedRequestAfterAtLeastOneToken) {
  const auto breach = [](int tokens, v1::FinishReason reason) {
    return BreachOf({Finish(100, static_cast<uint32_t>(tokens), reason, Tokens(0, tokens))}, Code::kOk, true);
  };
  EXPECT_EQ(breach(2, v1::FINISH_REASON_STOP), "");
  EXPECT_EQ(breach(4, v1::FINISH_REASON_LENGTH), "");
  EXPECT_EQ(breach(4, v1::FINISH_REASON_STOP), "") << "its last token was the end";
  EXPECT_THAT(breach(2, v1::FINISH_REASON_LENGTH), HasSubstr("finished after 2 tokens"));
  EXPECT_THAT(breach(0, v1::FINISH_REASON_STOP), HasSubstr("finished after 0 tokens"));
  EXPECT_THAT(breach(5, v1::FINISH_REASON_STOP), HasSubstr("5 tokens came, 4 were requested"));
}

TEST(StreamChecker, EveryMessageOrEndThatDoesNotFollowIsABreach) {
  const v1::GenerateResponse all = Tokens(0, 4), finish = Finish(100, 4);
  v1::GenerateResponse no_usage = finish;
  no_usage.mutable_finish()->clear_usage();
  const struct {
    std::vector<v1::GenerateResponse> messages;
    std::optional<Code> end;
    std::string want;
  } cases[] = {
      {{Tokens(0, 1), Tokens(2, 1)}, {}, "request r1: token index 2 came where 1 was expected"},
      {{Tokens(0, 2), Tokens(1, 1)}, {}, "token index 1 came where 2 was expected"},
      {{Tokens(1, 1)}, {}, "token index 1 came where 0 was expected"},
      {{Tokens(0, 5)}, {}, "5 tokens came, 4 were requested"},
      {{Tokens(0, 3), Finish(100, 3)}, {}, "finished after 3 tokens, 4 were requested"},
      {{all, Finish(100, 4, v1::FINISH_REASON_STOP)}, {}, "not the requested length limit"},
      {{all, no_usage}, {}, "usage"},
      {{all, Finish(0, 4)}, {}, "usage"},
      {{all, Finish(100, 5)}, {}, "usage"},
      {{all, finish, finish}, {}, "a message came after the finish"},
      {{all}, Code::kOk, "without a finish"},
      {{all, finish}, Code::kInternal, "error after the finish"},
      {{Tokens(0, 1, "r2")}, {}, "another request, r2"},
      // The first is kept.
      {{Tokens(1, 1), Tokens(9, 1)}, Code::kOk, "token index 1 "},
  };
  for (const auto& broken : cases) {
    EXPECT_THAT(BreachOf(broken.messages, broken.end), HasSubstr(broken.want));
  }
}

}  // namespace
}  // namespace bfio::loadgen
