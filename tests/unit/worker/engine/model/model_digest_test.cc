// A model's digest: what it covers, which bytes it samples, and what it can miss.
#include "worker/engine/model/model_digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "nlohmann/json.hpp"
#include "tests/testing/safetensors_bytes.h"
#include "worker/engine/model/layout.h"
#include "worker/engine/model/model.h"

namespace bfio::worker {
namespace {

namespace fs = std::filesystem;
using bfio::testing::SafetensorsBytes;
using bfio::testing::WriteBytes;
using nlohmann::json;

// A model whose matrices are larger than the sampled part of them.
class ModelDigestTest : public ::testing::Test {
 protected:
  ModelDigestTest() {
    dir_ =
        ::testing::TempDir() + "/digest_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(dir_);
    fs::create_directories(dir_);
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
  ~ModelDigestTest() override { fs::remove_all(dir_); }

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

  std::string dir_, file_;
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
