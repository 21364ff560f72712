// Logs: their queue and format, and what a program sets up.
#include "common/telemetry/log_queue.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/telemetry/line_limiter.h"
#include "common/telemetry/log.h"
#include "common/telemetry/log_format.h"
#include "common/telemetry/trace_context.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace bfio {
namespace {

using ::testing::ElementsAre;

std::string Note(uint64_t lines) {
  return absl::StrCat(lines, " dropped\n");
}

// A pipe with a buffer of one page, read only when the test reads it.
class Pipe {
 public:
  Pipe() {
    EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0);
    EXPECT_GT(fcntl(ends_[1], F_SETPIPE_SZ, 4096), 0);
  }
  ~Pipe() {
    CloseReader();
    close(ends_[1]);
  }
  int writer() const { return ends_[1]; }
  void CloseReader() {
    if (ends_[0] >= 0) close(ends_[0]);
    ends_[0] = -1;
  }
  // Waits for bytes until the text read so far ends with `end`.
  std::string ReadUntil(const std::string& end) {
    std::string text;
    char buffer[4096];
    while (text.size() < end.size() || text.substr(text.size() - end.size()) != end) {
      const ssize_t got = read(ends_[0], buffer, sizeof(buffer));
      if (got <= 0) break;
      text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }

 private:
  int ends_[2] = {-1, -1};
};

// Sum of the numbers of dropped lines that the notes in `text` report.
uint64_t DroppedIn(const std::string& text) {
  uint64_t told = 0;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    const size_t at = line.find(" dropped");
    if (at != std::string::npos) told += std::stoull(line.substr(0, at));
  }
  return told;
}

// A line exactly as long as the pipe's buffer: the next write blocks.
std::string Page() {
  std::string page(4096, '.');
  page.back() = '\n';
  return page;
}

TEST(LogQueue, DropsAndReportsLinesThatAStoppedReaderBlocks) {
  Pipe pipe;
  LogQueue queue(pipe.writer(), 100, Note);
  queue.Add(Page(), true);
  ASSERT_TRUE(queue.Flush(absl::InfiniteDuration()));
  // No line is written, and no caller waits: the queue keeps 10 lines of 10 bytes, and the writing thread has
  // taken at most as many.
  constexpr uint64_t kLines = 25;
  for (uint64_t i = 0; i < kLines; ++i) queue.Add(absl::StrCat("line   ", i + 10, "\n"));
  EXPECT_GE(queue.dropped(), kLines - 20);
  EXPECT_LE(queue.dropped(), kLines - 10);
  EXPECT_FALSE(queue.Flush(absl::Milliseconds(1)));
  EXPECT_EQ(pipe.ReadUntil("\n"), Page());
  std::string text;
  const auto written = [&text] {
    std::vector<std::string> lines;
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n')))
      if (line.substr(0, 4) == "line") lines.push_back(line);
    return lines;
  };
  while (written().size() + DroppedIn(text) < kLines) text += pipe.ReadUntil("\n");
  EXPECT_EQ(written().size() + DroppedIn(text), kLines) << "every line is written or told of";
  const std::vector<std::string> lines = written();
  EXPECT_TRUE(std::is_sorted(lines.begin(), lines.end())) << "lines keep their order";
  EXPECT_EQ(queue.dropped(), DroppedIn(text));
  queue.Add("after\n");
  EXPECT_EQ(pipe.ReadUntil("\n"), "after\n");
}

TEST(LogQueue, RequiredLinesAreKeptAndItEndsWhileTheReaderIsStopped) {
  Pipe pipe;
  {
    LogQueue queue(pipe.writer(), 10, Note);
    queue.Add(Page(), true);
    ASSERT_TRUE(queue.Flush(absl::InfiniteDuration()));
    for (int i = 0; i < 5; ++i) queue.Add("too long for it\n");
    queue.Add("why it ends\n", true);
    EXPECT_EQ(queue.dropped(), 5u);
    EXPECT_EQ(pipe.ReadUntil("\n"), Page());
    std::string text;
    while (text.find("why it ends\n") == std::string::npos || DroppedIn(text) < 5)
      text += pipe.ReadUntil("\n");
    EXPECT_EQ(DroppedIn(text), 5u);
  }
  LogQueue blocked(pipe.writer(), 1 << 16, Note);
  for (int i = 0; i < 10; ++i) blocked.Add(Page());
}

TEST(LogQueue, WritesTheLinesOfManyThreadsInOrder) {
  Pipe pipe;
  LogQueue queue(pipe.writer(), 1 << 20, Note);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&queue, t] {
      for (int i = 0; i < 500; ++i) queue.Add(absl::StrCat(t, " says ", i, "\n"));
    });
  }
  std::thread last([&] {
    for (std::thread& thread : threads) thread.join();
    queue.Add("end\n");
  });
  const std::vector<std::string> lines = absl::StrSplit(pipe.ReadUntil("\nend\n"), '\n');
  last.join();
  EXPECT_EQ(lines.size(), 2002u);
  std::vector<int> next(4, 0);
  for (const std::string& line : lines) {
    const std::vector<std::string> words = absl::StrSplit(line, " says ");
    if (words.size() != 2) continue;
    EXPECT_EQ(words[1], absl::StrCat(next[static_cast<size_t>(std::stoi(words[0]))]++));
  }
  EXPECT_THAT(next, ElementsAre(500, 500, 500, 500));
  EXPECT_EQ(queue.dropped(), 0u);
}

// --- log format ---

LogLine Line(absl::string_view message) {
  return {.time = absl::FromUnixMicros(1714564800000001),
          .level = "info",
          .program = "bfio_test",
          .thread = 7,
          .message = message};
}

TEST(LogFormatTest, AnyMessageIsOneLineAndSurvivesJson) {
  std::string nasty = "a\"b\\c\nd\re\tf\x1b[31m\x7f \xc3\xa9 {}";
  nasty.push_back('\0');
  const std::string text = TextLine(Line(nasty));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  const std::string line = JsonLine(Line(nasty));
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["message"], nasty);
  EXPECT_EQ(json["level"], "info");
  EXPECT_EQ(json["program"], "bfio_test");
  EXPECT_EQ(json["thread"], 7);
}

TEST(LogFormatTest, FieldsAreTypedInJson) {
  LogLine line = Line("hello");
  const std::vector<LogField> fields = {{"request_id", "a\"b\n"}, {"tenant", ""}, {"epoch", uint64_t{7}}};
  line.fields = fields;
  const std::string text = JsonLine(line);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["request_id"], "a\"b\n");
  EXPECT_EQ(json["epoch"], 7);
  EXPECT_FALSE(json.contains("tenant")) << "there is nothing to say";
  EXPECT_EQ(TextLine(line), TextLine(Line("hello")));
}

TEST(LogFormatTest, ScopesNestAndEnd) {
  EXPECT_TRUE(ScopedLogFields::Current().empty());
  {
    const ScopedLogFields outer{{"worker", "w1"}};
    const ScopedLogFields inner{{"epoch", 3}};
    ASSERT_EQ(ScopedLogFields::Current().size(), 2u);
    EXPECT_EQ(ScopedLogFields::Current()[0].text, "w1");
    std::thread([] { EXPECT_TRUE(ScopedLogFields::Current().empty()); }).join();
  }
  EXPECT_TRUE(ScopedLogFields::Current().empty());
  EXPECT_EQ(LogField("worker", std::string(1000, 'x')).text.size(), kMaxFieldBytes);
}

// --- telemetry ---

const absl::Time kFirstRefusal = absl::UnixEpoch();

TEST(RefusalLog, OneLinePerClassAndIntervalThenTheNumberSuppressed) {
  RefusalLog log;
  EXPECT_EQ(log.Line("no token", "10.0.0.1", kFirstRefusal), "refused: no token (10.0.0.1)");
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(log.Line("no token", "10.0.0.2", kFirstRefusal + i * absl::Milliseconds(1)).has_value());
  }
  EXPECT_EQ(log.Line("expired", "", kFirstRefusal + absl::Seconds(1)), "refused: expired")
      << "another class is another line";
  const absl::Time later = kFirstRefusal + RefusalLog::kQuiet;
  EXPECT_EQ(log.Line("no token", "10.0.0.3", later),
            "refused: no token (10.0.0.3); 1000 more since the last such line");
  EXPECT_EQ(log.Line("no token", "", later + RefusalLog::kQuiet), "refused: no token");
}

TEST(LineLimiter, PassesABurstOfAKindInEachPeriod) {
  LineLimiter limiter(3, absl::Seconds(10));
  for (int i = 0; i < 500; ++i) EXPECT_EQ(limiter.Pass("abandoned", kFirstRefusal).has_value(), i < 3) << i;
  EXPECT_EQ(limiter.Pass("abandoned", kFirstRefusal + absl::Seconds(10)),
            "; 497 more since the last such line");
}

TEST(RefusalLog, ClassesAreBounded) {
  RefusalLog log;
  size_t lines = 0;
  for (int i = 0; i < 1000; ++i)
    lines += log.Line(absl::StrCat("class ", i), "", kFirstRefusal).has_value() ? 1 : 0;
  EXPECT_EQ(lines, RefusalLog::kMaxClasses + 1) << "the rest share one";
}

constexpr char kTraceId[] = "4bf92f3577b34da6a3ce929d0e0e4736";

// Which W3C trace contexts are accepted and passed on.
TEST(TraceContext, AValidContextGivesItsTraceIdAndAnyOtherNone) {
  const std::string good = absl::StrCat("00-", kTraceId, "-00f067aa0ba902b7-01");
  const auto with = [&](size_t at, const std::string& text) {
    return absl::StrCat(good.substr(0, at), text, good.substr(at + text.size()));
  };
  const std::string later = with(0, "cc");
  for (const std::string& text : {good, with(53, "00"), later + "-what-comes-later"})
    EXPECT_EQ(TraceIdOf(text), kTraceId) << text;
  const std::string bad[] = {"",
                             with(0, "ff"),  // a version that cannot be
                             good.substr(1),
                             with(3, std::string(32, '0')),
                             with(3, "4BF92F3577B34DA6A3CE929D0E0E4736"),
                             with(36, std::string(16, '0')),
                             with(53, "0x"),
                             with(2, "_"),
                             with(35, "_"),
                             with(52, "_"),
                             good + "-more",  // version 00 has no more
                             later + "x",
                             later + "-a\nb",  // no second log line
                             later + "-" + std::string(600, 'a')};
  for (const std::string& text : bad) EXPECT_EQ(TraceIdOf(text), "") << text;
}

}  // namespace
}  // namespace bfio
