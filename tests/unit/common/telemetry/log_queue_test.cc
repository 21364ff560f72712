#include "common/telemetry/log_queue.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

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

}  // namespace
}  // namespace bfio
