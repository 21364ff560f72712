
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>

#include "router/frontend/tokenizer/model_source.h"
#include "tests/testing/latch.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kTokenizer[] = R"({"model":{"vocab":{"a":0}},"decoder":{"type":"ByteLevel"}})";

class ModelFilesTest : public ::testing::Test {
 protected:
  ModelFilesTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void Put(const std::string& name, const std::string& content) {
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }
  absl::StatusOr<ModelFiles> Load() { return LoadModelFiles(folder_.string()); }

  const std::filesystem::path folder_ = std::filesystem::path(::testing::TempDir()) / "model_files_test";
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

// The first that is offered is not everybody's for ever.
TEST(ModelSource, TheFilesAreThoseOfTheServedModel) {
  ModelSource source(nullptr);
  const auto offer = [&](const std::string& model, const std::string& directory) {
    testing::Latch done{1};
    absl::Status status;
    source.Take(model, directory, {{"tokenizer.json", kTokenizer}}, [&](const absl::Status& taken) {
      status = taken;
      done.count_down();
    });
    done.wait();
    return status;
  };
  const auto got = [&] { return source.Get() == nullptr ? "none" : source.Get()->directory; };
  EXPECT_TRUE(offer("stranger", "/stranger").ok());
  EXPECT_EQ(got(), "none") << "no model is served";
  EXPECT_FALSE(source.wanted("stranger"));
  EXPECT_TRUE(source.wanted("own"));
  source.SetServed("own");
  EXPECT_EQ(got(), "none");
  EXPECT_TRUE(offer("own", "/own").ok());
  EXPECT_EQ(got(), "/own");
  EXPECT_TRUE(offer("own", "/another").ok());
  EXPECT_EQ(got(), "/own") << "one for each model";
  for (const char* more : {"b", "c", "d"}) EXPECT_TRUE(offer(more, "/more").ok());
  EXPECT_EQ(got(), "/own") << "what is served is kept, whoever offers others";
  EXPECT_TRUE(source.wanted("stranger")) << "few others are";
  source.SetServed("d");
  EXPECT_EQ(got(), "/more") << "the model has changed";
}

}  // namespace
}  // namespace bfio::router
