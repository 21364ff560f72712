// The text of tokens, and the files of a model's tokenizer.
#include "router/frontend/tokenizer/token_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "nlohmann/json.hpp"
#include "router/frontend/tokenizer/model_files.h"
#include "tests/testing/latch.h"
#include "tests/testing/process.h"
#include "tests/testing/temp_folder.h"

namespace bfio::router {
namespace {

using bfio::testing::TempFolder;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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

// As trees these took up to 47 bytes per byte, and 400 KB of '[' ended the process. 2^22 ids take 48 MiB.
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

// --- model files ---

constexpr char kTokenizer[] = R"({"model":{"vocab":{"a":0}},"decoder":{"type":"ByteLevel"}})";

class ModelFilesTest : public ::testing::Test {
 protected:
  void Put(const std::string& name, const std::string& content) {
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }
  absl::StatusOr<ModelFiles> Load() { return LoadModelFiles(folder_.string()); }

  const TempFolder files_;
  const std::filesystem::path folder_ = files_.path();
};

TEST_F(ModelFilesTest, FactsAreThoseOfConfigJson) {
  Put("tokenizer.json", kTokenizer);
  Put("config.json", R"({"vocab_size":324,"eos_token_id":[2,7],"bos_token_id":1,"pad_token_id":3,
                         "model_type":"llama","torch_dtype":"bfloat16","architectures":["LlamaForCausalLM"]})");
  auto model = LoadModelFiles(folder_.string() + "//");
  ASSERT_TRUE(model.ok()) << model.status();
  const auto facts = [&] {
    return std::tuple(model->vocab_size, model->bos_token_id, model->pad_token_id, model->model_type,
                      model->dtype);
  };
  EXPECT_EQ(model->directory, folder_.string());
  EXPECT_EQ(facts(), std::tuple(324, 1, 3, "llama", "bfloat16"));
  EXPECT_THAT(model->eos_token_ids, ElementsAre(2, 7));
  EXPECT_THAT(model->architectures, ElementsAre("LlamaForCausalLM"));
  ASSERT_NE(model->text, nullptr);
  EXPECT_EQ(model->text->Of(0, false), "a");
  // Fields of wrong types have their defaults.
  Put("config.json", R"({"vocab_size":"many","eos_token_id":null,"bos_token_id":-1,"pad_token_id":1e30,
                         "model_type":7,"dtype":7,"architectures":"x"})");
  model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(facts(), std::tuple(0, 0, 0, "", ""));
  EXPECT_THAT(model->eos_token_ids, IsEmpty());
}

TEST_F(ModelFilesTest, TheArchiveHasTheTokenizerAndNoWeights) {
  Put("tokenizer.json", kTokenizer);
  Put("chat_template.jinja", "{{ messages }}");
  Put("model.safetensors", "weights");
  std::filesystem::create_directories(folder_ / "directory.model");
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(model->archive, HasSubstr(kTokenizer));
  EXPECT_THAT(model->archive, HasSubstr("{{ messages }}"));
  EXPECT_THAT(model->archive, Not(HasSubstr("weights")));
  EXPECT_EQ(model->archive_sha256.size(), 64u);
}

TEST_F(ModelFilesTest, ATokenizerOfAnotherKindIsHandedOutAllTheSame) {
  Put("spiece.model", "\x01\x02");
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->text, nullptr);
  EXPECT_EQ(model->why_no_text, "the model has no tokenizer.json");
  Put("tokenizer.json", "[]");
  EXPECT_EQ(Load()->why_no_text, "tokenizer.json: it has no vocabulary");
}

TEST_F(ModelFilesTest, ADirectoryWithoutATokenizerIsAnError) {
  EXPECT_EQ(Load().status(), absl::NotFoundError(folder_.string() + " has no tokenizer.json"));
  Put("config.json", "{}");
  EXPECT_TRUE(absl::IsNotFound(Load().status()));
  EXPECT_TRUE(absl::IsNotFound(LoadModelFiles(folder_.string() + "/nowhere").status()));
  Put("tokenizer.json", kTokenizer);
  Put("config.json", "[]");
  EXPECT_EQ(Load().status(),
            absl::InvalidArgumentError(folder_.string() + "/config.json: is not a JSON object"));
}

// Python's own library reads the archive and verifies its checksums.
TEST_F(ModelFilesTest, OthersCanReadTheArchive) {
  Put("a.zip",
      ZipArchive(
          {{"tokenizer.json", "{}"}, {"large.model", std::string(300'000, 'x')}, {"empty.jinja", ""}}));
  const std::string command =
      "python3 -c 'import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); assert z.testzip() is None; "
      "assert [(i.filename, i.file_size) for i in z.infolist()] == [(\"tokenizer.json\", 2), "
      "(\"large.model\", 300000), (\"empty.jinja\", 0)]; assert z.read(\"large.model\") == b\"x\" * 300000; "
      "assert z.read(\"tokenizer.json\") == b\"{}\"' " +
      (folder_ / "a.zip").string();
  EXPECT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(ZipArchive({{"a", "b"}}), ZipArchive({{"a", "b"}}));
  EXPECT_NE(ZipArchive({{"a", "b"}}), ZipArchive({{"a", "c"}}));
}

}  // namespace
}  // namespace bfio::router
