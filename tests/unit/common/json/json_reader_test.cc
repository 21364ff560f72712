#include "common/json/json_reader.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace bfio {
namespace {

using ::testing::HasSubstr;

std::string Repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

// What is beyond a limit or not JSON is refused wherever it is: in a field that is wanted, and in others.
TEST(JsonReader, RefusesWhatItDoesNotRead) {
  const struct {
    std::string value, error;
  } kCases[] = {{Repeated("[", 400'000), "is nested more than 32 deep"},
                {Repeated("{\"a\":", 400'000), "is nested more than 32 deep"},
                {Repeated("[", 31) + Repeated("]", 31), ""},
                {Repeated("[", 32) + Repeated("]", 32), "is nested more than 32 deep"},
                {absl::StrCat("\"", std::string(5 << 20, 'x'), "\""), "has a string of more than"},
                {absl::StrCat("\"", std::string(8 << 20, 'x'), "\""), "has "},
                {"\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[[[[[[[[[[[\"", ""},
                {"[1,]", "is not JSON at byte"},
                {"1e999", "is not JSON at byte"},
                {"\"\\ud800\"", "is not JSON at byte"},
                {"", "is not JSON at byte"},
                {std::string(1, '\0'), "has a zero byte"}};
  for (const auto& [value, error] : kCases) {
    for (const char* field : {"wanted", "other"}) {
      const auto read = ReadJsonObject(absl::StrCat("{\"", field, "\":", value, "}"), "file",
                                       {.bytes = 6 << 20}, {"wanted"});
      EXPECT_EQ(read.ok(), error.empty()) << value.substr(0, 80) << read.status();
      EXPECT_EQ(read.ok() && read->contains("wanted"), error.empty() && field == std::string("wanted"));
      EXPECT_THAT(std::string(read.status().message()), HasSubstr(error.empty() ? "" : "file: " + error));
    }
  }
}

TEST(JsonReader, ATreeHoldsOnlyWhatIsWanted) {
  const std::string many = "[" + Repeated("[],", 1000) + "0]";
  const JsonLimits limits = {.values = 1000};
  EXPECT_TRUE(ReadJsonObject("{\"b\":" + many + ",\"a\":1}", "", limits, {"a"}).ok());
  EXPECT_EQ(ReadJsonObject("{\"a\":" + many + "}", "", limits, {"a"}).status(),
            absl::InvalidArgumentError("has more than 1000 values"));
  EXPECT_EQ(ReadJsonObject("{\"a\":" + many + "}", "", limits).status(),
            absl::InvalidArgumentError("has more than 1000 values"));
  EXPECT_EQ(ReadJsonObject("{\"a\":1,\"a\":2}", "", limits, {"a"}).status(),
            absl::InvalidArgumentError("gives 'a' twice"));
  EXPECT_EQ(ReadJsonObject("{\"a\":{\"b\":1,\"b\":2}}", "", limits).status(),
            absl::InvalidArgumentError("gives 'b' twice"));
  EXPECT_EQ(*ReadJsonObject("\xef\xbb\xbf {\"a\":[1,{\"b\":null}],\"c\":-2.5}", ""),
            nlohmann::json::parse("{\"a\":[1,{\"b\":null}],\"c\":-2.5}"));
  EXPECT_EQ(JsonText(nlohmann::json{{"worker", "w\xff\xc0"}}), "{\"worker\":\"w\xef\xbf\xbd\xef\xbf\xbd\"}");
  for (const char* text : {"[]", "[{}]", "7", "\"{\"", "null"})
    EXPECT_FALSE(ReadJsonObject(text, "", limits, {"a"}).ok()) << text;
}

TEST(JsonReader, PassesTheWantedValuesOneAtATime) {
  std::vector<std::string> passed;
  const auto status = ReadJson(
      R"({"x":[1,{"a":{"no":1}}],"a":{"b":[{"k":[]},"s"],"c":{"d":1,"e":{"f":[2]}}},"b":[3]})", "", {},
      [](const JsonPath& path) {
        return path.Is({"a", "b", "*"}) || path.Is({"a", "c", "e"});
      },
      [&](JsonPath& path, nlohmann::json& value) {
        passed.push_back(
            absl::StrCat(absl::StrJoin(path.names, "."), path.in_array ? "[]" : "", value.dump()));
        return passed.size() < 3 ? absl::OkStatus() : absl::UnimplementedError("enough");
      });
  EXPECT_EQ(passed, (std::vector<std::string>{"a.b.[]{\"k\":[]}", "a.b.[]\"s\"", "a.c.e{\"f\":[2]}"}));
  EXPECT_EQ(status, absl::UnimplementedError("enough"));
}

// --- members that change ---

TEST(JsonMembers, OnlyTheNamedOnesChange) {
  const struct {
    std::string object, changed;
  } kCases[] = {
      {R"({})", R"({"a":1})"},
      {R"({"a":[1,{"a":2}]})", R"({"a":1})"},
      {R"({ "z" : 1.50, "b":{"gone":"},\"","a":[ ]} ,"y":"\u00e9"})",
       R"({"z" : 1.50,"b":{"gone":"},\"","a":[ ]},"y":"\u00e9","a":1})"},
      {R"({"\u0061":2,"gon\u0065":3,"aa":4})", R"({"aa":4,"a":1})"},
      {"\xef\xbb\xbf \n{\"gone\" : null\t,\n\"x\":\"a\\\\\"}\n", R"({"x":"a\\","a":1})"},
      // What the reader refuses does no harm.
      {"", R"({"a":1})"},
      {R"({"x)", R"({"x,"a":1})"},
      {R"(}{"x":"\)", R"({"a":1})"},
  };
  for (const auto& [object, changed] : kCases)
    EXPECT_EQ(WithMembers(object, {{"gone", ""}, {"a", "1"}}), changed) << object;
  EXPECT_EQ(WithMembers(R"({"a":1})", {{"a", ""}}), "{}");
}

}  // namespace
}  // namespace bfio
