// bfio_make_checkpoint: writes a random checkpoint, for tests that need a model whose answers do not matter.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/version.h"
#include "common/config/options.h"
#include "common/config/program.h"
#include "tools/checkpoint/generate.h"

namespace {

using bfio::checkpoint::CheckpointOptions;
using bfio::worker::DType;
using bfio::worker::ModelConfig;
using bfio::worker::RopeConfig;
using Family = ModelConfig::Family;
using Kind = RopeConfig::Kind;

constexpr char kUsage[] =
    "bfio_make_checkpoint writes a model with random weights (config.json and safetensors) that bfio_worker\n"
    "and Hugging Face transformers load. The same flags always give the same bytes.\n\n"
    "  bfio_make_checkpoint --out=tiny\n"
    "  bfio_make_checkpoint --out=qwen --family=qwen3 --hidden=256 --head_dim=64 --tied --shards=2\n"
    "  bfio_make_checkpoint --out=llama-8b --layers=32 --hidden=4096 --intermediate=14336 --heads=32 \\\n"
    "      --kv_heads=8 --vocab=128256 --max_positions=131072 --rope=llama3 --rope_theta=500000 \\\n"
    "      --rope_original_max_positions=8192 --shards=4        # Llama 3.1 8B's shapes, 16 GB";

absl::StatusOr<std::vector<int32_t>> ParseTokens(const std::string& text) {
  std::vector<int32_t> tokens;
  for (const absl::string_view id : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(id, &tokens.emplace_back())) {
      return absl::InvalidArgumentError(absl::StrCat("'", id, "' is not a number"));
    }
  }
  return tokens;
}

// WriteRandomCheckpoint checks what has no bounds here.
void AddOptions(bfio::OptionTable& table, std::string& out, CheckpointOptions& options) {
  ModelConfig& model = options.model;
  RopeConfig& rope = model.rope;
  table.Add("out", &out, "directory to write; created if missing, must be empty");
  table.AddChoice<Family>("family", &model.family,
                          {{"llama", Family::kLlama},
                           {"mistral", Family::kMistral},
                           {"qwen2", Family::kQwen2},
                           {"qwen3", Family::kQwen3}},
                          "model family");
  table.Add("layers", &(model.layers = 4), "layers");
  table.Add("hidden", &(model.hidden = 256), "hidden size");
  table.Add("intermediate", &model.intermediate, "hidden size of the MLP; 0: three times --hidden");
  table.Add("heads", &(model.heads = 8), "query heads");
  table.Add("kv_heads", &(model.kv_heads = 4), "key and value heads; must divide --heads");
  table.Add("head_dim", &model.head_dim, "head dimension; 0: --hidden / --heads");
  table.Add("vocab", &(model.vocab = 512), "vocabulary size");
  table.Add("max_positions", &(model.max_positions = 8192), "maximum sequence length, in tokens");
  table.AddChoice<DType>("dtype", &options.dtype,
                         {{"bf16", DType::kBF16}, {"f16", DType::kF16}, {"f32", DType::kF32}},
                         "data type of the weights");
  table.Add("shards", &options.shards, "safetensors files; above 1 also writes an index");
  table.Add("tied", &model.tied_embeddings, "the output projection shares the embedding's weights");
  table.Add("attention_bias", &model.qkv_bias,
            "biases on q, k, v, o (llama, qwen3; qwen2 has its own on q, k, v)");
  table.Add("mlp_bias", &model.mlp_bias, "biases in the MLP (llama)");
  table.AddChoice<Kind>("rope", &rope.kind,
                        {{"default", Kind::kDefault}, {"linear", Kind::kLinear}, {"llama3", Kind::kLlama3}},
                        "type of rotary embedding");
  table.Add("rope_theta", &rope.theta, "base frequency (theta) of the rotary embedding");
  table.Add("rope_factor", &(rope.factor = 8), "linear and llama3: scaling factor of the context length");
  table.Add("rope_original_max_positions", &(rope.original_max_positions = 1024),
            "llama3: context length before scaling, in tokens");
  table.AddParsed("eos_token_ids", &(model.eos_token_ids = {2}), "2",
                  "end-of-sequence token ids, separated by commas; may be empty", ParseTokens);
  table.Add("logit_std", &options.logit_std,
            "standard deviation of the logits; larger values make the output distribution more peaked");
  table.Add("seed", &options.seed, "seed of the weights");
}

absl::Status Run(const std::string& out, CheckpointOptions& options) {
  ModelConfig& model = options.model;
  if (out.empty()) return absl::InvalidArgumentError("--out=DIR is required");
  if (model.qkv_bias && (model.family == Family::kMistral || model.family == Family::kQwen2)) {
    return absl::InvalidArgumentError("--attention_bias requires --family=llama or qwen3");
  }
  if (model.mlp_bias && model.family != Family::kLlama)
    return absl::InvalidArgumentError("--mlp_bias requires --family=llama");
  if (model.intermediate == 0) model.intermediate = 3 * model.hidden;
  // Stays 0 when it cannot be computed; WriteRandomCheckpoint then reports the error.
  if (model.head_dim == 0 && model.heads > 0 && model.hidden % model.heads == 0) {
    model.head_dim = model.hidden / model.heads;
  }
  // The value of Llama 3.
  model.rms_epsilon = 1e-5;
  return WriteRandomCheckpoint(options, out);
}

}  // namespace

int main(int argc, char** argv) {
  const bfio::ProgramInfo info = {"bfio_make_checkpoint", bfio::Version(), kUsage};
  std::string out;
  CheckpointOptions options;
  bfio::OptionTable table;
  AddOptions(table, out, options);
  bfio::InitWithoutArguments(argc, argv, info, table);
  const absl::Status status = Run(out, options);
  return status.ok() ? 0 : bfio::ExitWith(info, status);
}
