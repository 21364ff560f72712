#include "tools/top/screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace bfio::top {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

Picture Of(uint32_t ranks) {
  Picture picture;
  v1::ClusterState state;
  state.mutable_policy()->set_name("bf_io_auto");
  state.set_epoch(4);
  state.set_expected_workers(ranks);
  state.mutable_uptime()->set_seconds(7200);
  state.set_max_waiting_requests(4096);
  state.add_shadows()->set_policy("fcfs");
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    v1::WorkerState& worker = *state.add_workers();
    worker.set_worker_id(absl::StrCat("node-", rank));
    worker.set_rank(rank);
    worker.set_phase(rank == 1 ? v1::WORKER_PHASE_DRAINING : v1::WORKER_PHASE_SERVING);
    worker.set_slots(72);
    worker.set_kv_tokens(100000);
    worker.set_load_tokens(1000 + 10 * rank);
    worker.set_reserved_kv_tokens(97000);
  }
  picture.figures = Compare(state, state);
  for (int i = 0; i < 100; ++i) picture.idle.push_back(0.01 * (i % 10));
  picture.message = "q quit";
  return picture;
}

std::string Text(const Picture& picture, int columns, int rows, bool plain = true) {
  return absl::StrJoin(Draw(picture, {{columns, rows}, plain}), "\n");
}

// Number of columns that the line takes: escape sequences take none, a UTF-8 character takes one.
int Width(const std::string& line) {
  int width = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      while (i < line.size() && line[i] != 'm') ++i;
    } else if ((static_cast<unsigned char>(line[i]) & 0xc0) != 0x80) {
      ++width;
    }
  }
  return width;
}

TEST(ScreenTest, FourWorkersAtAGlance) {
  const std::string text = Text(Of(4), 120, 40);
  EXPECT_THAT(text, StartsWith("bfio serving  policy bf_io_auto  epoch 4  ranks 4  up 2 h"));
  EXPECT_THAT(text, HasSubstr("load max 1,030 (rank 3)  mean 1,015  min 1,000  balance 0.985"));
  EXPECT_THAT(text, HasSubstr("waiting 0 of 4,096"));
  EXPECT_THAT(text, HasSubstr("against fcfs"));
  for (int rank = 0; rank < 4; ++rank) EXPECT_THAT(text, HasSubstr(absl::StrCat("node-", rank, " ")));
  EXPECT_THAT(text, HasSubstr("draining"));
  EXPECT_THAT(text, HasSubstr("97.0 %")) << "reserved KV";
  EXPECT_THAT(text, HasSubstr("q quit"));
}

TEST(ScreenTest, ShowsTheServedModels) {
  v1::ClusterState state;
  state.add_groups()->set_model("0123456789abcdef");
  state.add_groups()->set_model("0123456789abcdef");
  state.add_groups()->set_model("fedcba9876543210");
  state.add_groups();
  Picture picture;
  picture.figures = Compare(state, state);
  EXPECT_THAT(Text(picture, 120, 40), HasSubstr("model 0123456789ab, fedcba987654"));
}

TEST(ScreenTest, NeverWiderOrLongerThanTheScreen) {
  for (const uint32_t ranks : {0u, 1u, 4u, 256u}) {
    Picture picture = Of(ranks);
    for (const int columns : {1, 10, 40, 80, 81, 200}) {
      for (const int rows : {1, 2, 5, 10, 24, 60}) {
        for (const bool plain : {false, true}) {
          const auto lines = Draw(picture, {{columns, rows}, plain});
          EXPECT_LE(lines.size(), static_cast<size_t>(rows)) << ranks << " " << columns << "x" << rows;
          for (const std::string& line : lines) EXPECT_LE(Width(line), columns) << line;
        }
      }
    }
  }
}

TEST(ScreenTest, ManyWorkersGetAMarkEachAndTheHeaviestAreNamed) {
  const auto lines = Draw(Of(256), {{80, 40}, true});
  int marks = 0;
  for (const std::string& line : lines) {
    if (line.size() > 5 && line.find_first_not_of("_.-:=+*#", 5) == std::string::npos) {
      marks += static_cast<int>(line.size()) - 5;
    }
  }
  EXPECT_EQ(marks, 256);
  const std::string text = absl::StrJoin(lines, "\n");
  EXPECT_THAT(text, HasSubstr("node-255 "));
  EXPECT_THAT(text, HasSubstr("node-1 ")) << "it drains";
  EXPECT_THAT(text, Not(HasSubstr("node-2 ")));
  EXPECT_EQ(lines.size(), 40u);
}

TEST(ScreenTest, PlainIsAsciiWithoutEscapes) {
  for (const char c : Text(Of(40), 120, 60)) EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << int{c};
  EXPECT_THAT(Text(Of(40), 120, 60, false), AllOf(HasSubstr("\x1b[1m"), HasSubstr("█")));
}

// A worker's name comes from the worker and is not trusted.
TEST(ScreenTest, ANameCannotMoveTheCursor) {
  Picture picture = Of(2);
  picture.figures.workers[0].worker_id = "\x1b[2J\x07\xc3\xa9\n";
  picture.figures.state.mutable_policy()->set_name("a\x1b]0;x");
  picture.message = "refused: \x1b[31m";
  const std::string text = Text(picture, 120, 40);
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, HasSubstr("?[2J????"));
}

TEST(ScreenTest, NoWorkersYet) {
  Picture picture = Of(0);
  picture.figures.state.set_expected_workers(8);
  const std::string text = Text(picture, 80, 24);
  EXPECT_THAT(text, StartsWith("bfio waiting for workers"));
  EXPECT_THAT(text, HasSubstr("ranks 0 of 8"));
  EXPECT_THAT(text, HasSubstr("load max 0 (rank -)"));
}

TEST(ScreenTest, Numbers) {
  EXPECT_EQ(Count(0), "0");
  EXPECT_EQ(Count(999), "999");
  EXPECT_EQ(Count(1234567), "1,234,567");
  EXPECT_EQ(Short(0), "0.00");
  EXPECT_EQ(Short(12.34), "12.3");
  EXPECT_EQ(Short(999.7), "1.00K");
  EXPECT_EQ(Short(65432), "65.4K");
  EXPECT_EQ(Short(4.2e7), "42.0M");
  EXPECT_EQ(Seconds(0.0000123), "12 us");
  EXPECT_EQ(Seconds(0.0037), "3.70 ms");
  EXPECT_EQ(Seconds(0.0466), "46.6 ms");
  EXPECT_EQ(Seconds(3.7), "3.70 s");
  EXPECT_EQ(Seconds(90), "90.0 s");
  EXPECT_EQ(Seconds(7000), "117 min");
  EXPECT_EQ(Seconds(3 * 86400), "3 d");
  EXPECT_EQ(Percent(0.0123), "1.2 %");
}

}  // namespace
}  // namespace bfio::top
