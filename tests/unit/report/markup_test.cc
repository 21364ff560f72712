#include "tools/report/markup.h"

#include <string>

#include "gtest/gtest.h"

namespace bfio::report {
namespace {

TEST(MarkupTest, MarkupCharactersAreEscaped) {
  EXPECT_EQ(Escape("<a href=\"x\">'&'</a>"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
  EXPECT_EQ(Escape("µs → ∞ 𝛼"), "µs → ∞ 𝛼");
}

TEST(MarkupTest, WhatXmlForbidsIsReplaced) {
  EXPECT_EQ(Escape(std::string("a\0b\x1b", 4)), "a\uFFFDb\uFFFD");
  EXPECT_EQ(Escape("\xff\xc3"), "\uFFFD\uFFFD");            // no such byte; cut short
  EXPECT_EQ(Escape("\xc0\x80"), "\uFFFD\uFFFD");            // overlong
  EXPECT_EQ(Escape("\xed\xa0\x80"), "\uFFFD\uFFFD\uFFFD");  // a surrogate
  EXPECT_EQ(Escape("\xef\xbf\xbf"), "\uFFFD\uFFFD\uFFFD");  // U+FFFF
  EXPECT_EQ(Escape("\xe2<b>"), "\uFFFD&lt;b&gt;");          // a cut character does not hide a tag
}

TEST(MarkupTest, LinesBreakAtSpacesOnly) {
  EXPECT_EQ(WrapText("one two three", 60, 12), (std::vector<std::string>{"one two", "three"}));
  EXPECT_EQ(WrapText("indivisible", 10, 12), (std::vector<std::string>{"indivisible"}));
  EXPECT_EQ(WrapText("", 10, 12), (std::vector<std::string>{""}));
}

TEST(MarkupTest, ShorteningCutsBetweenCharacters) {
  EXPECT_EQ(Shortened("µµµµ", 4), "µµµµ");
  EXPECT_EQ(Shortened("µµµµ", 3), "µµ…");
}

}  // namespace
}  // namespace bfio::report
