#include "tools/top/prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bfio::top {
namespace {

using ::testing::HasSubstr;

// Presses these keys. Returns the resulting actions.
std::vector<Action> Type(Prompt& prompt, const std::string& keys) {
  std::vector<Action> actions;
  for (const char key : keys) {
    if (const auto action = prompt.OnKey(key)) actions.push_back(*action);
  }
  return actions;
}

TEST(PromptTest, QuitsOnQAndOnInterruptEverywhere) {
  Prompt prompt;
  ASSERT_EQ(Type(prompt, "q").size(), 1u);
  ASSERT_TRUE(Type(prompt, "pfcfs").empty());
  const std::vector<Action> interrupted = Type(prompt, "\x03");
  ASSERT_EQ(interrupted.size(), 1u);
  EXPECT_EQ(interrupted[0].kind, Action::Kind::kQuit);
}

TEST(PromptTest, ActionsNeedANameAndAConfirmation) {
  Prompt prompt;
  for (const char* keys : {"p\r", "py", "p\ry", "d\ry", "pfcfs\rn", "pfcfs\r\r", "pfcfs\r\x1by", "dw1\rx",
                           "x", "y", "\r", "pfcfs\x1b\ry"}) {
    EXPECT_TRUE(Type(prompt, keys).empty()) << keys;
    prompt = Prompt();
  }
}

TEST(PromptTest, AConfirmedActionIsReturned) {
  Prompt prompt;
  ASSERT_TRUE(Type(prompt, "plptx\x7f").empty());
  EXPECT_THAT(prompt.Text(), HasSubstr("? lpt"));
  ASSERT_TRUE(Type(prompt, "\r").empty());
  EXPECT_THAT(prompt.Text(), HasSubstr("switch to lpt"));
  std::vector<Action> actions = Type(prompt, "y");
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].kind, Action::Kind::kSetPolicy);
  EXPECT_EQ(actions[0].name, "lpt");
  // q can be part of a name.
  actions = Type(prompt, "dhost:1#q\ry");
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].kind, Action::Kind::kDrain);
  EXPECT_EQ(actions[0].name, "host:1#q");
  actions = Type(prompt, "uw1\ry");
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].kind, Action::Kind::kUndrain);
  EXPECT_EQ(actions[0].name, "w1");
}

TEST(PromptTest, NamesAreBoundedAndPrintable) {
  Prompt prompt;
  Type(prompt, "d" + std::string(1000, 'a') + "\x01\xff b\r");
  EXPECT_EQ(Type(prompt, "y").at(0).name, std::string(Prompt::kMaxName, 'a'));
}

}  // namespace
}  // namespace bfio::top
