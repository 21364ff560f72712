#include "common/auth/token_file.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/spdlog.h"
#include "spdlog/sinks/base_sink.h"

namespace bfio {
namespace {

using Verdict = BearerTokens::Verdict;

// Counts the warnings that contain `text`. Threads: any.
class WarningCount final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit WarningCount(std::string text) : text_(std::move(text)) {}
  int count() const { return count_; }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (message.level == spdlog::level::warn &&
        std::string(message.payload.data(), message.payload.size()).find(text_) != std::string::npos)
      ++count_;
  }
  void flush_() override {}

  const std::string text_;
  std::atomic<int> count_ = 0;
};

class TokenFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/bfio-tokens-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    path_ = folder_ + "/tokens";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Replaces the file atomically: the new file is complete before it takes the old one's name.
  void Replace(const std::string& text) {
    std::ofstream(path_ + ".new") << text;
    std::filesystem::rename(path_ + ".new", path_);
  }
  // Waits; the limit only keeps a failing test from running forever.
  static bool Until(const std::function<bool()>& condition) {
    const absl::Time deadline = MonotonicNow() + absl::Seconds(60);
    while (!condition() && MonotonicNow() < deadline) absl::SleepFor(absl::Milliseconds(10));
    return condition();
  }

  std::string folder_, path_;
};

TEST_F(TokenFileTest, IsReadAgainWhenChangedAndKeptWhenInvalid) {
  Replace("acme token:the-first-the-first\n");
  const auto file = TokenFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto verdict = [&](absl::string_view token) { return (*file)->Find(token, absl::Now()).verdict; };
  const auto becomes = [&](absl::string_view token, Verdict wanted) {
    return Until([&] { return verdict(token) == wanted; });
  };
  EXPECT_EQ((*file)->Find("the-first-the-first", absl::Now()).name, "acme");
  Replace("acme token:the-first-the-first\nacme token:the-second-the-second\n");
  EXPECT_TRUE(becomes("the-second-the-second", Verdict::kValid));
  EXPECT_EQ(verdict("the-first-the-first"), Verdict::kValid);
  // A file with one bad line causes a warning and changes nothing.
  const auto refused = std::make_shared<WarningCount>("cannot reload the tokens");
  const auto logger = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("counted", refused));
  Replace("acme token:the-third-the-third\nnonsense\n");
  EXPECT_TRUE(Until([&] { return refused->count() == 1; }));
  EXPECT_EQ(verdict("the-second-the-second"), Verdict::kValid);
  EXPECT_EQ(verdict("the-third-the-third"), Verdict::kUnknown);
  std::filesystem::remove(path_);
  EXPECT_TRUE(Until([&] { return refused->count() == 2; }));
  EXPECT_EQ(verdict("the-second-the-second"), Verdict::kValid);
  Replace("acme token:the-fourth-the-fourth\n");
  EXPECT_TRUE(becomes("the-fourth-the-fourth", Verdict::kValid));
  EXPECT_TRUE(becomes("the-second-the-second", Verdict::kUnknown));
  spdlog::set_default_logger(logger);
}

TEST_F(TokenFileTest, AnUnreadableFileIsRefusedAtStart) {
  EXPECT_EQ(TokenFile::Open(path_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(TokenFile::Open(folder_).ok());
  Replace("nonsense\n");
  EXPECT_EQ(TokenFile::Open(path_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TokenFileTest, AClientsTokenIsOneWord) {
  Replace(" the-token-of-a-client \n");
  const absl::StatusOr<std::string> token = ReadTokenFile(path_);
  ASSERT_TRUE(token.ok());
  EXPECT_EQ(*token, "the-token-of-a-client");
  for (const char* bad : {"", "two words", "two\nlines"}) {
    Replace(bad);
    EXPECT_EQ(ReadTokenFile(path_).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace bfio
