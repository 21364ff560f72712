#include "router/frontend/tokenizer/stop_text.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/rng.h"

namespace bfio::router {
namespace {

// Letters as tokens: a, b, c, "ab", "bc", and a special one.
std::shared_ptr<const TokenText> Letters() {
  auto text = TokenText::Parse(
      R"({"model":{"vocab":{"a":0,"b":1,"c":2,"ab":3,"bc":4}},"decoder":{"type":"ByteLevel"},
          "added_tokens":[{"id":5,"content":"<end>","special":true}]})");
  EXPECT_TRUE(text.ok()) << text.status();
  return std::make_shared<const TokenText>(*std::move(text));
}

// The index of the token that ends the output, and the stop text that was found.
std::pair<int, std::string> Search(std::vector<std::string> stops, const std::vector<uint32_t>& tokens,
                                   bool special = false) {
  StopText text(Letters(), std::move(stops), special);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (const auto stop = text.Add(tokens[i])) return {static_cast<int>(i), *stop};
  }
  return {-1, ""};
}

using Found = std::pair<int, std::string>;

TEST(StopText, EndsWhereverTheTokensAreCut) {
  EXPECT_EQ(Search({"abc"}, {0, 1, 2}), Found(2, "abc"));
  EXPECT_EQ(Search({"abc"}, {3, 2}), Found(1, "abc"));
  EXPECT_EQ(Search({"abc"}, {2, 0, 4, 0}), Found(2, "abc"));
  EXPECT_EQ(Search({"b"}, {0, 3}), Found(1, "b")) << "in the middle of a token";
  EXPECT_EQ(Search({"abc"}, {0, 1, 1, 2}), Found(-1, ""));
}

TEST(StopText, TheFirstInTheRequestsOrderIsMeant) {
  EXPECT_EQ(Search({"c", "bc"}, {0, 4}), Found(1, "c"));
  EXPECT_EQ(Search({"bc", "c"}, {0, 4}), Found(1, "bc"));
  EXPECT_EQ(Search({"abcabc", "b"}, {0, 1}), Found(1, "b"));
}

TEST(StopText, SpecialTokensCountWhereTheyAreText) {
  EXPECT_EQ(Search({"<end>"}, {0, 5}), Found(-1, ""));
  EXPECT_EQ(Search({"<end>"}, {0, 5}, /*special=*/true), Found(1, "<end>"));
  EXPECT_EQ(Search({"ab"}, {0, 5, 1}), Found(2, "ab")) << "what is not text does not separate";
  EXPECT_EQ(Search({"ab"}, {0, 99, 1}), Found(2, "ab"));
}

TEST(StopText, AgreesWithASearchOfTheWholeText) {
  const std::vector<std::string> letters = {"a", "b", "c", "ab", "bc"};
  Rng rng(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> stops(1 + rng.Below(3));
    for (std::string& stop : stops) {
      for (uint64_t n = 1 + rng.Below(5); n > 0; --n) stop += letters[rng.Below(5)];
    }
    std::vector<uint32_t> tokens(30);
    for (uint32_t& token : tokens) token = static_cast<uint32_t>(rng.Below(5));
    Found expected{-1, ""};
    std::string text;
    for (size_t i = 0; i < tokens.size() && expected.first < 0; ++i) {
      text += letters[tokens[i]];
      for (const std::string& stop : stops) {
        if (expected.first < 0 && text.find(stop) != std::string::npos)
          expected = {static_cast<int>(i), stop};
      }
    }
    EXPECT_EQ(Search(stops, tokens), expected);
  }
}

}  // namespace
}  // namespace bfio::router
