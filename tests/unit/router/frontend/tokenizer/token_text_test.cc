#include "router/frontend/tokenizer/token_text.h"

#include <gtest/gtest.h>

#include <fstream>
#include <initializer_list>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "nlohmann/json.hpp"
#include "tests/testing/process.h"

namespace bfio::router {
namespace {

using nlohmann::json;

json ByteLevel() {
  return {{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"\u0120the", 1}, {"\u010a", 2}, {"\u00e2", 3}}}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"added_tokens", {{{"id", 5}, {"content", "</s>"}, {"special", true}}}}};
}

// The largest resident size of this process since it was reset.
int64_t PeakKb() {
  std::ifstream status("/proc/self/status");
  int64_t kb = 0;
  for (std::string word; status >> word && word != "VmHWM:";) continue;
  status >> kb;
  return kb;
}

TEST(TokenText, ByteLevelSpellingsAreBytes) {
  json tokenizer = ByteLevel();
  tokenizer["model"]["merges"] = json::array({"a b", json::array({"c", "d"})});  // not read
  const auto text = TokenText::Parse(tokenizer.dump());
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->size(), 6u);
  for (const auto& [id, special, expected] : {std::tuple(0u, false, "a"),
                                              {1, false, " the"},
                                              {2, false, "\n"},
                                              {3, false, "\xe2"},  // a part of a character
                                              {5, false, ""},
                                              {5, true, "</s>"},
                                              {4, true, ""},  // a gap
                                              {4'000'000'000, true, ""}})
    EXPECT_EQ(text->Of(id, special), expected) << id;
}

TEST(TokenText, SentencePieceHasSpacesAndSingleBytes) {
  json tokenizer = {
      {"model", {{"vocab", {{"<0x0A>", 0}, {"\u2581the", 1}, {"x", 2}}}}},
      {"decoder", {{"type", "Sequence"}, {"decoders", {{{"type", "Replace"}}, {{"type", "ByteFallback"}}}}}}};
  auto text = TokenText::Parse(tokenizer.dump());
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->Of(0, false), "\n");
  EXPECT_EQ(text->Of(1, false), " the");
  // Unigram: a list of tokens with their scores.
  tokenizer["model"]["vocab"] = json::array({json::array({"a", -1.5}), json::array({"\u2581b", -2})});
  tokenizer["decoder"] = {{"type", "Metaspace"}};
  text = TokenText::Parse(tokenizer.dump());
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->Of(0, false), "a");
  EXPECT_EQ(text->Of(1, false), " b");
}

TEST(TokenText, OtherKindsAreRefused) {
  for (const json& decoder : {json{{"type", "WordPiece"}}, json{{"type", 7}}, json()}) {
    json tokenizer = ByteLevel();
    tokenizer["decoder"] = decoder;
    if (decoder.is_null()) tokenizer.erase("decoder");
    EXPECT_TRUE(absl::IsUnimplemented(TokenText::Parse(tokenizer.dump()).status())) << decoder;
  }
}

TEST(TokenText, InvalidTokenizersAreErrors) {
  for (const char* text : {"", "{", "[]", "7", "{}", R"({"model":7})", R"({"model":{}})"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(TokenText::Parse(text).status())) << text;
  }
  json tokenizer = ByteLevel();
  for (const json& vocabulary :
       {json(7), json("x"), json{{"a", -1}}, json{{"a", 1e300}}, json{{"a", 1 << 23}}, json{{"a", "b"}},
        json::array({1}), json::array({json::array()})}) {
    tokenizer["model"]["vocab"] = vocabulary;
    EXPECT_TRUE(absl::IsInvalidArgument(TokenText::Parse(tokenizer.dump()).status())) << vocabulary;
  }
  tokenizer = ByteLevel();
  for (const json& added : {json("x"), json{7}, json{{{"id", 7}}}, json{{{"id", "a"}, {"content", "x"}}},
                            json{{{"id", 7}, {"content", "x"}, {"special", "x"}}}}) {
    tokenizer["added_tokens"] = added;
    EXPECT_TRUE(absl::IsInvalidArgument(TokenText::Parse(tokenizer.dump()).status())) << added;
  }
}

// As trees these took up to 47 bytes per byte, and 400 KB of '[' ended the process. 48 MiB are for the 2^22
// ids.
TEST(TokenText, AnyTokenizerTakesLittleAboveItsText) {
  const auto repeated = [](const std::string& text, size_t bytes) {
    std::string all;
    while (all.size() < bytes) all += text;
    return all;
  };
  constexpr size_t kText = 8 << 20;
  const struct {
    std::string begin, part, end;
    bool fits;
  } kCases[] = {
      {R"({"decoder":)", "[", "", false},
      {R"({"model":{"vocab":{"a":)", "[", "", false},
      {R"({"x":[)", "[],", "0]}", false},
      {R"({"decoder":[)", "[],", "0]}", false},
      {R"({"added_tokens":[)", R"({"id":7,"content":""},)", R"({"id":8,"content":"x"}]})", false},
      {R"({"added_tokens":[[)", "[],", "0]]}", false},
      {R"({"decoder":{"type":"ByteLevel"},"model":{"vocab":{)", R"("a":0,)", R"("b":4194303}}})", true},
      {R"({"decoder":{"type":"ByteLevel"},"model":{"vocab":{"a":0},"merges":[)", R"("a b",)", "\"\"]}}",
       true}};
  for (const auto& [begin, part, end, fits] : kCases) {
    const std::string text = begin + repeated(part, kText) + end;
    std::ofstream("/proc/self/clear_refs") << 5;  // resets the peak
    const int64_t before = PeakKb();
    EXPECT_EQ(TokenText::Parse(text).ok(), fits) << begin << part;
    // AddressSanitizer surrounds and keeps what is allocated.
    EXPECT_LT(PeakKb() - before, testing::kSlowdown * 80 << 10) << begin << part;
  }
}

// --- texts that end an output ---

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
