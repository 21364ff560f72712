// The step log: whole lines, a bounded size, and no effect on steps if its disk fails.
#include "worker/link/step_log.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_split.h"
#include "tests/testing/temp_folder.h"

namespace bfio::worker {
namespace {

namespace fs = std::filesystem;
using ::bfio::testing::TempFolder;
using ::testing::HasSubstr;

class StepLogFile : public ::testing::Test {
 protected:
  std::string path() const { return folder_ + "/steps.csv"; }
  static std::vector<std::string> Lines(const std::string& file) {
    std::ifstream in(file);
    std::string text((std::istreambuf_iterator<char>(in)), {});
    return absl::StrSplit(text, '\n', absl::SkipEmpty());
  }

  const TempFolder files_;
  const std::string folder_ = files_.path();
};

void Append(StepLog::Rank& rank, int64_t step) {
  StepReport report;
  report.epoch = 3;
  report.step = step;
  report.output.load_tokens = 1000 + step;
  report.output.tokens.resize(7);
  report.output.finished.resize(1);
  report.output.prefill_tokens = 90;
  report.local_ns = 5000;
  report.barrier_wait_ns = 60;
  if (step > 1) report.gap_ns = 8;
  report.output.batch = {.tokens = 95, .prefill_pairs = 12345678, .decode_context = 4000};
  rank.Append(rank.Row(report, {.rank = 1, .world_size = 2}, /*admitted=*/2, /*end_ns=*/12345));
}

TEST_F(StepLogFile, HasALinePerStepAndRank) {
  {
    auto log = StepLog::Open(path(), 1 << 20);
    ASSERT_TRUE(log.ok()) << log.status();
    StepLog::Rank* a = (*log)->AddRank("host:1#0");
    StepLog::Rank* b = (*log)->AddRank("with,comma");
    Append(*a, 1);
    Append(*a, 2);
    Append(*b, 1);
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
    for (int64_t step = 1; step <= 5000; ++step) Append(*rank, step);
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
  for (int64_t step = 1; step <= 200'000; ++step) Append(*rank, step);
}

TEST_F(StepLogFile, AnUnusablePathOrBoundIsRefusedAtOnce) {
  EXPECT_EQ(StepLog::Open(folder_ + "/no/folder/x", 1 << 20).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(StepLog::Open(path(), 0).status().message(), HasSubstr("must be at least 65536"));
}

}  // namespace
}  // namespace bfio::worker
