#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/telemetry/line_limiter.h"
#include "common/telemetry/trace_context.h"

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
