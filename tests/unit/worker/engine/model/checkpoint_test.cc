// Checkpoint directories with missing or unexpected parts, wrong shapes, or files in the wrong place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/testing/safetensors_bytes.h"
#include "tests/testing/temp_folder.h"
#include "worker/engine/model/layout.h"
#include "worker/engine/model/model.h"

namespace bfio::worker {
namespace {

namespace fs = std::filesystem;
using bfio::testing::SafetensorsBytes;
using bfio::testing::TempFolder;
using bfio::testing::WriteBytes;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kIndex[] = "/model.safetensors.index.json";

// Shapes by tensor name, which a test changes before it writes the file.
using Shapes = std::map<std::string, std::vector<int64_t>>;

std::string FileOf(const Shapes& shapes, const std::string& dtype = "F32") {
  json header = json::object();
  int64_t at = 0;
  for (const auto& [name, shape] : shapes) {
    int64_t bytes = dtype == "F32" ? 4 : 2;
    for (const int64_t size : shape) bytes *= size;
    header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  return SafetensorsBytes(header.dump(), at);
}

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() {
    config_ = {{"model_type", "llama"},       {"vocab_size", 12},       {"hidden_size", 8},
               {"intermediate_size", 6},      {"num_hidden_layers", 2}, {"num_attention_heads", 2},
               {"num_key_value_heads", 1},    {"eos_token_id", 2},      {"max_position_embeddings", 64},
               {"tie_word_embeddings", false}};
    WriteConfig();
    shapes_ = ShapesOf();
  }

  void WriteConfig() { WriteBytes(dir_ + "/config.json", config_.dump()); }
  Shapes ShapesOf() const {
    Shapes shapes;
    for (const TensorSpec& spec : ModelTensors(*ParseModelConfig(config_.dump(), "config.json"))) {
      shapes[spec.name] = spec.shape;
    }
    return shapes;
  }
  void Write(const std::string& file, const std::string& text) { WriteBytes(dir_ + "/" + file, text); }
  void WriteModel() { Write("model.safetensors", FileOf(shapes_)); }
  // Writes the model's tensors with one of them changed, and expects a refusal.
  void ExpectRefusedWith(const std::function<void(Shapes&)>& change, const std::string& why) {
    shapes_ = ShapesOf();
    change(shapes_);
    WriteModel();
    ExpectRefused(why);
  }
  std::vector<int32_t> Ends() {
    const auto model = LoadModel(dir_);
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? (*model)->config().eos_token_ids : std::vector<int32_t>{-1};
  }

  // Writes the layers' tensors to b.safetensors and the others to a.safetensors. Returns the index from
  // tensor to file.
  json WriteShards() {
    Shapes a, b;
    json map = json::object();
    for (const auto& [name, shape] : shapes_) {
      const bool layer = name.find("layers") != std::string::npos;
      (layer ? b : a)[name] = shape;
      map[name] = layer ? "b.safetensors" : "a.safetensors";
    }
    WriteBytes(dir_ + "/a.safetensors", FileOf(a));
    WriteBytes(dir_ + "/b.safetensors", FileOf(b));
    return map;
  }
  void WriteIndex(const json& map) {
    WriteBytes(
        dir_ + kIndex,
        json{{"metadata", {{"total_size", 1}, {"x", {1, {{"y", nullptr}}}}}}, {"weight_map", map}}.dump());
  }

  void ExpectRefused(const std::string& why, absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    const auto model = LoadModel(dir_);
    ASSERT_FALSE(model.ok()) << why;
    EXPECT_EQ(model.status().code(), code) << model.status();
    EXPECT_THAT(std::string(model.status().message()),
                AllOf(HasSubstr(dir_), HasSubstr(why), Not(HasSubstr("\n"))));
  }

  const TempFolder files_;
  const std::string dir_ = files_.path();
  json config_;
  Shapes shapes_;
};

TEST_F(CheckpointTest, EveryTensorMustBeThereInItsShapeAndNoOther) {
  for (const auto& [name, shape] : ShapesOf()) {
    ExpectRefusedWith([&](Shapes& shapes) { shapes.erase(name); },
                      absl::StrCat("tensor '", name, "' is missing"));
    const std::string why = absl::StrCat("model.safetensors: tensor '", name, "' has shape [");
    ExpectRefusedWith([&](Shapes& shapes) { ++shapes[name].back(); }, why);
    ExpectRefusedWith([&](Shapes& shapes) { shapes[name].push_back(1); }, why);
  }
  ExpectRefusedWith([](Shapes& shapes) { shapes.erase("lm_head.weight"); },
                    "tensor 'lm_head.weight' is missing (and tie_word_embeddings is not true)");
  for (const char* name : {"model.layers.0.self_attn.q_proj.bias", "model.layers.2.input_layernorm.weight",
                           "model.layers.0.self_attn.q_norm.weight", "score.weight"}) {
    ExpectRefusedWith([&](Shapes& shapes) { shapes[name] = {8}; },
                      absl::StrCat("tensor '", name, "' is not part of the llama model"));
  }
}

TEST_F(CheckpointTest, StoredFrequencyTablesAreIgnored) {
  shapes_["model.layers.0.self_attn.rotary_emb.inv_freq"] = {2};
  shapes_["model.rotary_emb.inv_freq"] = {2};
  WriteModel();
  EXPECT_TRUE(LoadModel(dir_).ok()) << LoadModel(dir_).status();
}

TEST_F(CheckpointTest, ATiedHeadMayOnlyBeACopy) {
  config_["tie_word_embeddings"] = true;
  WriteConfig();
  shapes_ = ShapesOf();
  ASSERT_FALSE(shapes_.contains("lm_head.weight"));
  WriteModel();
  const auto tied = LoadModel(dir_);
  ASSERT_TRUE(tied.ok()) << tied.status();
  EXPECT_EQ((*tied)->lm_head().data, (*tied)->embedding().data);
  const int64_t bytes = (*tied)->weight_bytes();

  shapes_["lm_head.weight"] = {12, 8};
  WriteModel();
  ExpectRefused("tensor 'lm_head.weight' differs from the embedding, although tie_word_embeddings is true");
  // The two tensors are adjacent in the file; overwrite the second with the first.
  std::string file = FileOf(shapes_);
  const size_t data = file.find("}}") + 2, begin = (data + 7) / 8 * 8, size = 12 * 8 * 4;
  file.replace(begin + size, size, file.substr(begin, size));
  WriteBytes(dir_ + "/model.safetensors", file);
  const auto copied = LoadModel(dir_);
  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_EQ((*copied)->weight_bytes(), bytes);
}

TEST_F(CheckpointTest, EmptyDirectoriesNameTheMissingFiles) {
  ExpectRefused("has neither model.safetensors nor model.safetensors.index.json",
                absl::StatusCode::kNotFound);
  fs::remove(dir_ + "/config.json");
  ExpectRefused("config.json: cannot be opened", absl::StatusCode::kNotFound);
  const auto nowhere = LoadModel("/nowhere");
  EXPECT_EQ(nowhere.status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CheckpointTest, GenerationConfigAddsEndsOfSequence) {
  WriteModel();
  constexpr char kFile[] = "generation_config.json";
  Write(kFile, R"({"eos_token_id": [7, 2], "temperature": 0.6})");
  EXPECT_THAT(Ends(), ElementsAre(2, 7));
  // The family's default end tokens apply only where the model names none.
  Write(kFile, R"({"eos_token_id": [7, 9]})");
  EXPECT_THAT(Ends(), ElementsAre(2, 7, 9));
  config_.erase("eos_token_id");
  WriteConfig();
  EXPECT_THAT(Ends(), ElementsAre(7, 9));
  Write(kFile, R"({"temperature": 0.6})");
  EXPECT_THAT(Ends(), ElementsAre(2));
  Write(kFile, std::string("{}\0 more", 8));
  ExpectRefused("generation_config.json: has a zero byte in its JSON");
  Write(kFile, R"({"eos_token_id": 12})");
  ExpectRefused("generation_config.json: eos_token_id has 12; token ids must be from 0 to 11");
}

TEST_F(CheckpointTest, ShardsAreOneModel) {
  WriteIndex(WriteShards());
  const auto model = LoadModel(dir_);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto checkpoint = Checkpoint::Open(dir_);
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_EQ((*checkpoint)->FileOf("model.norm.weight"), dir_ + "/a.safetensors");
  EXPECT_EQ((*checkpoint)->FileOf("model.layers.1.mlp.up_proj.weight"), dir_ + "/b.safetensors");
}

TEST_F(CheckpointTest, AnIndexCannotLeaveTheDirectory) {
  const json map = WriteShards();
  fs::copy_file(dir_ + "/a.safetensors", dir_ + "/../outside.safetensors",
                fs::copy_options::overwrite_existing);
  for (const char* path : {"../outside.safetensors", "/etc/passwd", "./a.safetensors", "sub/a.safetensors",
                           "..", "", "a.bin", "..\\a.safetensors"}) {
    json bad = map;
    bad["model.norm.weight"] = path;
    WriteIndex(bad);
    ExpectRefused("puts tensor 'model.norm.weight' into '");
    ExpectRefused("which is not the plain name of a .safetensors file");
  }
}

TEST_F(CheckpointTest, IndexAndShardsMustAgree) {
  const json map = WriteShards();
  const auto refused = [&](const std::string& tensor, const json& file, const std::string& why,
                           absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    json bad = map;
    bad.erase(tensor);
    if (!file.is_null()) bad[tensor] = file;
    WriteIndex(bad);
    ExpectRefused(why, code);
  };
  const std::string norm = "model.norm.weight";
  refused(norm, nullptr, "a.safetensors: tensor 'model.norm.weight': is not in the index");
  refused(norm, "b.safetensors",
          "a.safetensors: tensor 'model.norm.weight': the index has it in 'b.safetensors'");
  refused("ghost", "b.safetensors", "b.safetensors: tensor 'ghost': is in the index but not in the file");
  refused("ghost", "c.safetensors", "c.safetensors: cannot be opened", absl::StatusCode::kNotFound);
}

TEST_F(CheckpointTest, IndexAndSingleFileTogetherAreAmbiguous) {
  WriteIndex(WriteShards());
  WriteModel();
  ExpectRefused("has both model.safetensors and model.safetensors.index.json");
}

TEST(WeightMap, RefusesInvalidJson) {
  const std::pair<std::string, std::string> rows[] = {
      {"", "is not JSON"},
      {"[]", "has an array instead of an object"},
      {"\"x\"", "has 'x' instead of an object"},
      {"{}", "has no 'weight_map'"},
      {R"({"metadata":{"weight_map":{"t":"a.safetensors"}}})", "has no 'weight_map'"},
      {R"({"weight_map":{}})", "'weight_map' is empty"},
      {R"({"weight_map":[]})", "has an array instead of an object"},
      {R"({"weight_map":null})", "has null instead of an object"},
      {R"({"weight_map":{"t":1}})", "has 1 for tensor 't'"},
      {R"({"weight_map":{"t":{}}})", "has an object for tensor 't'"},
      {R"({"weight_map":{"t":[]}})", "has an array for tensor 't'"},
      {R"({"weight_map":{"t":"a.safetensors","t":"a.safetensors"}})", "tensor 't' twice"},
      {R"({"weight_map":{"t":"a.safetensors"},"weight_map":{}})", "'weight_map' twice"}};
  for (const auto& [text, why] : rows) {
    const absl::Status status = ParseWeightMap(text, "D/index.json").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("D/index.json: "), HasSubstr(why), Not(HasSubstr("\n"))));
  }
}

// --- model digest ---

// A model's digest: what it covers, which bytes it samples, and what it can miss.

// A model whose matrices are larger than the sampled part of them.
class ModelDigestTest : public ::testing::Test {
 protected:
  ModelDigestTest() {
    config_ = {{"model_type", "llama"},        {"vocab_size", 256},      {"hidden_size", 128},
               {"intermediate_size", 192},     {"num_hidden_layers", 2}, {"num_attention_heads", 4},
               {"num_key_value_heads", 2},     {"eos_token_id", 2},      {"max_position_embeddings", 64},
               {"tie_word_embeddings", false}, {"bos_token_id", 1}};
    json header = json::object();
    for (const TensorSpec& spec : ModelTensors(*ParseModelConfig(config_.dump(), "config.json"))) {
      int64_t bytes = 4;
      for (const int64_t size : spec.shape) bytes *= size;
      header[spec.name] = {{"dtype", "F32"}, {"shape", spec.shape}, {"data_offsets", {end_, end_ + bytes}}};
      places_[spec.name] = {end_, bytes};
      end_ += bytes;
    }
    file_ = SafetensorsBytes(header.dump(), static_cast<size_t>(end_));
    data_ = static_cast<int64_t>(file_.size()) - end_;
  }

  struct Place {
    int64_t at = 0, bytes = 0;
  };

  ModelDigest Digest() {
    WriteBytes(dir_ + "/config.json", config_.dump());
    WriteBytes(dir_ + "/model.safetensors", file_);
    auto model = LoadModel(dir_);
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? (*model)->digest() : ModelDigest();
  }
  // Digest of the model with `bytes` bytes of this tensor changed, starting at `from`.
  ModelDigest Changed(const std::string& tensor, int64_t from, int64_t bytes) {
    const std::string before = file_;
    const auto at = static_cast<size_t>(data_ + places_.at(tensor).at + from);
    for (int64_t i = 0; i < bytes; ++i) file_[at + static_cast<size_t>(i)] ^= 1;
    const ModelDigest digest = Digest();
    file_ = before;
    return digest;
  }
  int64_t Samples() const { return SamplesPerTensor(static_cast<int64_t>(places_.size())); }

  const TempFolder files_;
  const std::string dir_ = files_.path();
  std::string file_;
  json config_;
  std::map<std::string, Place> places_;
  int64_t end_ = 0, data_ = 0;
};

TEST_F(ModelDigestTest, TheSameModelHasTheSameDigest) {
  const ModelDigest digest = Digest();
  EXPECT_EQ(digest, Digest());
  EXPECT_EQ(digest.Hex().size(), 64u);
  EXPECT_EQ(digest.Hex().find_first_not_of("0123456789abcdef"), std::string::npos);
  // A header with the same content in other bytes.
  uint64_t length = 0;
  std::memcpy(&length, file_.data(), sizeof(length));
  file_.insert(sizeof(length) + length, 8, ' ');
  length += 8;
  std::memcpy(file_.data(), &length, sizeof(length));
  EXPECT_EQ(digest, Digest());
}

// Fine-tuned models with merged LoRA weights differ in every element of some matrices, if only by a bit.
TEST_F(ModelDigestTest, AChangeAtAnEndOrAsLongAsTheStrideIsDetectedAnywhere) {
  const ModelDigest digest = Digest();
  int64_t sampled = 0;
  for (const auto& [name, place] : places_) {
    SCOPED_TRACE(name);
    EXPECT_NE(Changed(name, 0, place.bytes), digest);
    EXPECT_NE(Changed(name, 0, 1), digest);
    EXPECT_NE(Changed(name, place.bytes - 1, 1), digest);
    if (SampleOffsets(place.bytes, Samples()).empty()) continue;
    ++sampled;
    const int64_t stride = place.bytes / (Samples() - 1) + 1;
    EXPECT_LT(stride, place.bytes / 50) << "small";
    for (const int64_t from : {place.bytes / 2, place.bytes / 2 + 131, place.bytes / 3, place.bytes / 7})
      EXPECT_NE(Changed(name, from, stride), digest) << from;
  }
  EXPECT_EQ(sampled, 16) << "all matrices";
}

TEST_F(ModelDigestTest, TheConfigurationIsCovered) {
  std::vector<std::string> digests = {Digest().Hex()};
  const auto with = [&](const std::string& field, const json& value) {
    const json before = config_;
    config_[field] = value;
    digests.push_back(Digest().Hex());
    config_ = before;
  };
  with("eos_token_id", 3);
  with("eos_token_id", json::array({2, 3}));
  with("bos_token_id", 4);
  with("bos_token_id", nullptr);
  with("rms_norm_eps", 1.5e-6);
  with("rope_theta", 10001.0);
  with("max_position_embeddings", 65);
  WriteBytes(dir_ + "/generation_config.json", R"({"eos_token_id": [2, 5]})");
  digests.push_back(Digest().Hex());
  std::sort(digests.begin(), digests.end());
  EXPECT_EQ(std::adjacent_find(digests.begin(), digests.end()), digests.end());
}

TEST(ModelDigest, SamplesAreEvenlySpaced) {
  for (const int64_t samples : {2, 3, 14, 56, 64}) {
    EXPECT_TRUE(SampleOffsets(samples * kSampleBytes, samples).empty());
    for (const int64_t bytes : {samples * kSampleBytes + 1, int64_t{99'991}, int64_t{1} << 40}) {
      const std::vector<int64_t> offsets = SampleOffsets(bytes, samples);
      ASSERT_EQ(offsets.size(), static_cast<size_t>(samples));
      EXPECT_EQ(offsets.front(), 0);
      EXPECT_EQ(offsets.back(), bytes - kSampleBytes);
      for (size_t i = 1; i < offsets.size(); ++i)
        ASSERT_LE(offsets[i] - offsets[i - 1], bytes / (samples - 1) + 1) << bytes << " bytes";
    }
  }
}

TEST(ModelDigest, SampledBytesAreBounded) {
  for (int64_t tensors = 1; tensors <= 8192; ++tensors) {
    ASSERT_LE(tensors * SamplesPerTensor(tensors), 16'384) << tensors;
    ASSERT_LE(SamplesPerTensor(tensors), 64);
  }
  EXPECT_EQ(SamplesPerTensor(1'000'000), 2);
  EXPECT_EQ(SamplesPerTensor(291), 56) << "Llama-3.1-8B, as the header says";
}

}  // namespace
}  // namespace bfio::worker
