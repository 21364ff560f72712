#include "router/frontend/tokenizer/token_text.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "nlohmann/json.hpp"

namespace bfio::router {
namespace {

using nlohmann::json;

json ByteLevel() {
  return {{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"\u0120the", 1}, {"\u010a", 2}, {"\u00e2", 3}}}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"added_tokens", {{{"id", 5}, {"content", "</s>"}, {"special", true}}}}};
}

TEST(TokenText, ByteLevelSpellingsAreBytes) {
  const auto text = TokenText::Parse(ByteLevel().dump());
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->size(), 6u);
  EXPECT_EQ(text->Of(0, false), "a");
  EXPECT_EQ(text->Of(1, false), " the");
  EXPECT_EQ(text->Of(2, false), "\n");
  EXPECT_EQ(text->Of(3, false), "\xe2") << "a part of a character";
}

TEST(TokenText, SpecialTokensAreTextOnlyWhereRequested) {
  const auto text = TokenText::Parse(ByteLevel().dump());
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(text->Of(5, false), "");
  EXPECT_EQ(text->Of(5, true), "</s>");
  EXPECT_EQ(text->Of(4, true), "") << "a gap";
  EXPECT_EQ(text->Of(4'000'000'000, true), "");
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
  json tokenizer = ByteLevel();
  tokenizer["decoder"] = {{"type", "WordPiece"}};
  EXPECT_TRUE(absl::IsUnimplemented(TokenText::Parse(tokenizer.dump()).status()));
  tokenizer["decoder"] = {{"type", 7}};
  EXPECT_TRUE(absl::IsUnimplemented(TokenText::Parse(tokenizer.dump()).status()));
  tokenizer.erase("decoder");
  EXPECT_TRUE(absl::IsUnimplemented(TokenText::Parse(tokenizer.dump()).status()));
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

TEST(TokenText, MergesAreNotRead) {
  json tokenizer = ByteLevel();
  tokenizer["model"]["merges"] = json::array({"a b", json::array({"c", "d"})});
  EXPECT_TRUE(TokenText::Parse(tokenizer.dump()).ok());
}

}  // namespace
}  // namespace bfio::router
