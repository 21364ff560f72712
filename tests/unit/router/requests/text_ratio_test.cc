// Bytes per token, from texts that were placed and prompts that a server has counted.
#include "router/requests/text_ratio.h"

#include "gtest/gtest.h"

namespace bfio::router {
namespace {

class PromptCountTest : public ::testing::Test {
 protected:
  // Texts of 300 bytes end, and the server counts this many prompts of so many tokens in all.
  void Window(int64_t ended, double prompts, double tokens) {
    for (int64_t i = 0; i < ended; ++i) count_.OnEnd(300);
    count_.OnCount(prompts_ += prompts, tokens_ += tokens);
  }
  double ratio() const { return ratio_->bytes_per_token(); }

  const std::shared_ptr<TextRatio> ratio_ = std::make_shared<TextRatio>();
  PromptCount count_{ratio_};
  double prompts_ = 0, tokens_ = 0;
};

TEST_F(PromptCountTest, ASampleIsOfManyPrompts) {
  Window(0, 1000, 1e6);
  EXPECT_EQ(ratio(), TextRatio::kUsual);
  for (int i = 0; i < 3; ++i) {
    count_.OnEnd(0);
    Window(16, 16, 1600);
  }
  EXPECT_EQ(ratio(), TextRatio::kUsual);
  // The server has not counted the last one yet.
  Window(16, 15, 1500);
  EXPECT_NEAR(ratio(), 3, 1e-9);
}

TEST_F(PromptCountTest, CountsWithOthersPromptsAndRestartsAreNoSample) {
  Window(64, 64, 6400);
  EXPECT_EQ(ratio(), TextRatio::kUsual) << "what it has counted before is not known";
  Window(64, 128, 1);
  prompts_ = tokens_ = 0;
  Window(64, 10, 1000);
  Window(64, 64, 0);
  for (int i = 0; i < 4; ++i) Window(64, 0, 0);
  EXPECT_EQ(ratio(), TextRatio::kUsual);
  for (int i = 0; i < 3; ++i) Window(64, 0, 0);
  Window(64, 256, 25600);
  EXPECT_NEAR(ratio(), 3, 1e-9) << "the server was late";
  ratio_->Add(4);
  Window(64, 64, 6400);
  EXPECT_NEAR(ratio(), 3, 1e-9);
}

TEST_F(PromptCountTest, TheMedianStaysWithinBounds) {
  Window(0, 0, 0);
  for (int i = 0; i < 5; ++i) Window(64, 64, 6400);
  for (int i = 0; i < 4; ++i) Window(64, 64, 64);
  EXPECT_NEAR(ratio(), 3, 1e-9);
  Window(64, 64, 64);
  EXPECT_EQ(ratio(), TextRatio::kMost);
  for (int i = 0; i < 5; ++i) Window(64, 64, 1e9);
  EXPECT_EQ(ratio(), TextRatio::kLeast);
}

}  // namespace
}  // namespace bfio::router
