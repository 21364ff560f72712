// The step log: whole lines, a bounded size, and no effect on steps if its disk fails.
#include "worker/link/step_log.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace bfio::worker {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class StepLogFile : public ::testing::Test {
 protected:
  StepLogFile() : folder_(absl::StrCat(::testing::TempDir(), "bfio_steps_", getpid())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~StepLogFile() override { fs::remove_all(folder_); }
  std::string path() const { return folder_ + "/steps.csv"; }
  static std::vector<std::string> Lines(const std::string& file) {
    std::ifstream in(file);
    std::string text((std::istreambuf_iterator<char>(in)), {});
    return absl::StrSplit(text, '\n', absl::SkipEmpty());
  }

  const std::string folder_;
};

StepRow Row(int64_t step) {
  StepRow row = {.epoch = 3,
                 .step = step,
                 .rank = 1,
                 .ranks = 2,
                 .load_tokens = 1000 + step,
                 .active = 7,
                 .admitted = 2,
                 .finished = 1,
                 .prefill_tokens = 90,
                 .local_ns = 5000,
                 .barrier_wait_ns = 60};
  if (step > 1) row.gap_ns = 8;
  row.end_ns = 12345;
  row.batch = {.tokens = 95, .prefill_pairs = 12345678, .decode_context = 4000};
  return row;
}

TEST_F(StepLogFile, HasALinePerStepAndRank) {
  {
    auto log = StepLog::Open(path(), 1 << 20);
    ASSERT_TRUE(log.ok()) << log.status();
    StepLog::Rank* a = (*log)->AddRank("host:1#0");
    StepLog::Rank* b = (*log)->AddRank("with,comma");
    a->Append(Row(1));
    a->Append(Row(2));
    b->Append(Row(1));
  }
  EXPECT_THAT(Lines(path()),
              ::testing::ElementsAre(
                  "worker,epoch,step,rank,ranks,load_tokens,active,admitted,finished,prefill_tokens,local_ns,"
                  "barrier_wait_ns,gap_ns,end_ns,batch_tokens,prefill_pairs,decode_context",
                  "host:1#0,3,1,1,2,1001,7,2,1,90,5000,60,,12345,95,12345678,4000",
                  "host:1#0,3,2,1,2,1002,7,2,1,90,5000,60,8,12345,95,12345678,4000",
                  "with_comma,3,1,1,2,1001,7,2,1,90,5000,60,,12345,95,12345678,4000"));
}

TEST_F(StepLogFile, TheBoundHoldsAndEveryFileHasAHeaderAndWholeLines) {
  constexpr int64_t kBound = StepLog::kMinBytes;
  for (int run = 0; run < 3; ++run) {
    auto log = StepLog::Open(path(), kBound);
    ASSERT_TRUE(log.ok()) << log.status();
    StepLog::Rank* rank = (*log)->AddRank("worker");
    for (int64_t step = 1; step <= 5000; ++step) rank->Append(Row(step));
  }
  EXPECT_LE(static_cast<int64_t>(fs::file_size(path()) + fs::file_size(path() + ".1")), kBound);
  EXPECT_GT(static_cast<int64_t>(fs::file_size(path() + ".1")), kBound / 4);
  for (const std::string& file : {path(), path() + ".1"}) {
    const std::vector<std::string> lines = Lines(file);
    ASSERT_FALSE(lines.empty());
    EXPECT_EQ(lines[0] + "\n", StepLog::kHeader);
    for (const std::string& line : lines) {
      EXPECT_EQ(std::count(line.begin(), line.end(), ','), 16) << line;
    }
  }
  EXPECT_THAT(Lines(path()).back(), HasSubstr("worker,3,5000,"));
}

TEST_F(StepLogFile, AFullDiskStopsOnlyTheLog) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  auto log = StepLog::Open("/dev/full", 1 << 20);
  ASSERT_TRUE(log.ok()) << log.status();
  StepLog::Rank* rank = (*log)->AddRank("worker");
  for (int64_t step = 1; step <= 200'000; ++step) rank->Append(Row(step));
}

TEST_F(StepLogFile, AnUnusablePathOrBoundIsRefusedAtOnce) {
  EXPECT_EQ(StepLog::Open(folder_ + "/no/folder/x", 1 << 20).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(StepLog::Open(path(), 0).status().message(), HasSubstr("must be at least 65536"));
}

}  // namespace
}  // namespace bfio::worker
