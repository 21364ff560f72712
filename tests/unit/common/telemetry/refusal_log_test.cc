#include "common/telemetry/refusal_log.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace bfio {
namespace {

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

TEST(RefusalLog, ClassesAreBounded) {
  RefusalLog log;
  size_t lines = 0;
  for (int i = 0; i < 1000; ++i)
    lines += log.Line(absl::StrCat("class ", i), "", kFirstRefusal).has_value() ? 1 : 0;
  EXPECT_EQ(lines, RefusalLog::kMaxClasses + 1) << "the rest share one";
}

}  // namespace
}  // namespace bfio
