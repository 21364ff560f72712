// Which W3C trace contexts are accepted and passed on.
#include "common/telemetry/trace_context.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace bfio {
namespace {

constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736", kSpan[] = "00f067aa0ba902b7";

std::string Make(const std::string& version, const std::string& trace, const std::string& span,
                 const std::string& flags) {
  return absl::StrCat(version, "-", trace, "-", span, "-", flags);
}

TEST(TraceContext, AValidContextGivesItsTraceId) {
  EXPECT_EQ(TraceIdOf(Make("00", kTrace, kSpan, "01")), kTrace);
  EXPECT_EQ(TraceIdOf(Make("00", kTrace, kSpan, "00")), kTrace);
  EXPECT_EQ(TraceIdOf(absl::StrCat(Make("cc", kTrace, kSpan, "01"), "-what-comes-later")), kTrace);
}

TEST(TraceContext, AnInvalidContextGivesNoTraceId) {
  EXPECT_EQ(TraceIdOf(""), "");
  EXPECT_EQ(TraceIdOf(Make("ff", kTrace, kSpan, "01")), "") << "a version that cannot be";
  EXPECT_EQ(TraceIdOf(Make("00", std::string(32, '0'), kSpan, "01")), "");
  EXPECT_EQ(TraceIdOf(Make("00", kTrace, std::string(16, '0'), "01")), "");
  EXPECT_EQ(TraceIdOf(Make("00", "4BF92F3577B34DA6A3CE929D0E0E4736", kSpan, "01")), "") << "capitals";
  EXPECT_EQ(TraceIdOf(Make("00", kTrace, kSpan, "0x")), "");
  EXPECT_EQ(TraceIdOf(Make("0", kTrace, kSpan, "01")), "");
  EXPECT_EQ(TraceIdOf(absl::StrCat(Make("00", kTrace, kSpan, "01"), "-more")), "")
      << "version 00 has no more";
  EXPECT_EQ(TraceIdOf(absl::StrCat(Make("cc", kTrace, kSpan, "01"), "x")), "");
  EXPECT_EQ(TraceIdOf(absl::StrCat(Make("cc", kTrace, kSpan, "01"), "-a\nb")), "") << "no second log line";
  EXPECT_EQ(TraceIdOf(absl::StrCat(Make("cc", kTrace, kSpan, "01"), "-", std::string(600, 'a'))), "");
  std::string good = Make("00", kTrace, kSpan, "01");
  for (const size_t dash : {2, 35, 52}) {
    std::string bad = good;
    bad[dash] = '_';
    EXPECT_EQ(TraceIdOf(bad), "") << dash;
  }
}

}  // namespace
}  // namespace bfio
