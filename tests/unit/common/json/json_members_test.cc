#include "common/json/json_reader.h"

#include <gtest/gtest.h>

#include <string>

namespace bfio {
namespace {

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
