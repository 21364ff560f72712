#include "common/telemetry/log_format.h"

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "common/telemetry/log.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace bfio {
namespace {

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

}  // namespace
}  // namespace bfio
