// bfio_make_checkpoint: writes a random checkpoint, for tests that need a model whose answers do not matter.
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/config/absl_flags.h"
#include "common/config/program.h"
#include "tools/checkpoint/generate.h"

ABSL_FLAG(std::string, out, "", "directory to write; made when it is not there, must be empty");
ABSL_FLAG(std::string, family, "llama", "llama, mistral, qwen2 or qwen3");
ABSL_FLAG(int64_t, layers, 4, "layers");
ABSL_FLAG(int64_t, hidden, 256, "width of the model");
ABSL_FLAG(int64_t, intermediate, 0, "width inside the MLP; 0: three times --hidden");
ABSL_FLAG(int64_t, heads, 8, "heads of the query");
ABSL_FLAG(int64_t, kv_heads, 4, "heads of key and value; divides --heads");
ABSL_FLAG(int64_t, head_dim, 0, "width of a head; 0: --hidden / --heads");
ABSL_FLAG(int64_t, vocab, 512, "token ids");
ABSL_FLAG(int64_t, max_positions, 8192, "longest sequence, in tokens");
ABSL_FLAG(std::string, dtype, "bf16", "of the weights: bf16, f16 or f32");
ABSL_FLAG(int64_t, shards, 1, "files; above 1 with an index");
ABSL_FLAG(bool, tied, false, "the output projection is the embedding");
ABSL_FLAG(bool, attention_bias, false, "biases on q, k, v, o (llama, qwen3; qwen2 has its own on q, k, v)");
ABSL_FLAG(bool, mlp_bias, false, "biases in the MLP (llama)");
ABSL_FLAG(std::string, rope, "default", "rotary embedding: default, linear or llama3");
ABSL_FLAG(double, rope_theta, 10000, "base of its wavelengths");
ABSL_FLAG(double, rope_factor, 8, "linear and llama3: how much the context is stretched");
ABSL_FLAG(int64_t, rope_original_max_positions, 1024, "llama3: context before that, in tokens");
ABSL_FLAG(std::string, eos_token_ids, "2", "tokens that end a sequence, separated by commas; may be empty");
ABSL_FLAG(double, logit_std, bfio::checkpoint::CheckpointOptions().logit_std,
          "standard deviation of the logits: how sure the model is");
ABSL_FLAG(uint64_t, seed, 1, "seed of the weights");

namespace {

using bfio::checkpoint::CheckpointOptions;
using bfio::worker::DType;
using bfio::worker::ModelConfig;
using bfio::worker::RopeConfig;
using Family = ModelConfig::Family;
using Kind = RopeConfig::Kind;

constexpr char kUsage[] =
    "bfio_make_checkpoint writes a random model that the engines (and transformers) load: config.json and\n"
    "safetensors. The same flags give the same bytes everywhere.\n\n"
    "  bfio_make_checkpoint --out=tiny\n"
    "  bfio_make_checkpoint --out=qwen --family=qwen3 --hidden=256 --head_dim=64 --tied --shards=2\n"
    "  bfio_make_checkpoint --out=llama-8b --layers=32 --hidden=4096 --intermediate=14336 --heads=32 \\\n"
    "      --kv_heads=8 --vocab=128256 --max_positions=131072 --rope=llama3 --rope_theta=500000 \\\n"
    "      --rope_original_max_positions=8192 --shards=4        # Llama 3.1 8B's shapes, 16 GB";

template <typename T>
absl::StatusOr<T> Choose(const char* flag, const std::string& text,
                         std::initializer_list<std::pair<const char*, T>> choices) {
  std::string names;
  for (const auto& [name, value] : choices) {
    if (text == name) return value;
    absl::StrAppend(&names, names.empty() ? "" : ", ", name);
  }
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " is '", text, "'; it can be: ", names));
}

absl::Status ReadEosTokens(ModelConfig& model) {
  for (const absl::string_view id :
       absl::StrSplit(absl::GetFlag(FLAGS_eos_token_ids), ',', absl::SkipEmpty())) {
    int32_t value = 0;
    if (!absl::SimpleAtoi(id, &value)) {
      return absl::InvalidArgumentError(absl::StrCat("--eos_token_ids has '", id, "', which is no number"));
    }
    model.eos_token_ids.push_back(value);
  }
  return absl::OkStatus();
}

absl::Status ReadRope(RopeConfig& rope) {
  BFIO_ASSIGN_OR_RETURN(
      rope.kind,
      Choose<Kind>("rope", absl::GetFlag(FLAGS_rope),
                   {{"default", Kind::kDefault}, {"linear", Kind::kLinear}, {"llama3", Kind::kLlama3}}));
  rope.theta = absl::GetFlag(FLAGS_rope_theta);
  rope.factor = absl::GetFlag(FLAGS_rope_factor);
  rope.original_max_positions = absl::GetFlag(FLAGS_rope_original_max_positions);
  return absl::OkStatus();
}

void ReadSizes(ModelConfig& model) {
  model.layers = absl::GetFlag(FLAGS_layers);
  model.hidden = absl::GetFlag(FLAGS_hidden);
  model.intermediate = absl::GetFlag(FLAGS_intermediate);
  if (model.intermediate == 0) model.intermediate = 3 * model.hidden;
  model.heads = absl::GetFlag(FLAGS_heads);
  model.kv_heads = absl::GetFlag(FLAGS_kv_heads);
  model.head_dim = absl::GetFlag(FLAGS_head_dim);
  // Stays 0 when it cannot be computed; WriteRandomCheckpoint then reports the error.
  if (model.head_dim == 0 && model.heads > 0 && model.hidden % model.heads == 0) {
    model.head_dim = model.hidden / model.heads;
  }
  model.vocab = absl::GetFlag(FLAGS_vocab);
  model.max_positions = absl::GetFlag(FLAGS_max_positions);
  // The value of Llama 3.
  model.rms_epsilon = 1e-5;
}

absl::StatusOr<CheckpointOptions> ReadOptions() {
  CheckpointOptions options;
  ModelConfig& model = options.model;
  BFIO_ASSIGN_OR_RETURN(const Family family, Choose<Family>("family", absl::GetFlag(FLAGS_family),
                                                            {{"llama", Family::kLlama},
                                                             {"mistral", Family::kMistral},
                                                             {"qwen2", Family::kQwen2},
                                                             {"qwen3", Family::kQwen3}}));
  BFIO_ASSIGN_OR_RETURN(options.dtype,
                        Choose<DType>("dtype", absl::GetFlag(FLAGS_dtype),
                                      {{"bf16", DType::kBF16}, {"f16", DType::kF16}, {"f32", DType::kF32}}));
  model.family = family;
  ReadSizes(model);
  model.tied_embeddings = absl::GetFlag(FLAGS_tied);
  model.qkv_bias = absl::GetFlag(FLAGS_attention_bias);
  model.mlp_bias = absl::GetFlag(FLAGS_mlp_bias);
  if (model.qkv_bias && (family == Family::kMistral || family == Family::kQwen2)) {
    return absl::InvalidArgumentError("--attention_bias is for llama and qwen3");
  }
  if (model.mlp_bias && family != Family::kLlama)
    return absl::InvalidArgumentError("--mlp_bias is for llama");
  absl::Status status = ReadRope(model.rope);
  if (status.ok()) status = ReadEosTokens(model);
  if (!status.ok()) return status;
  options.shards = absl::GetFlag(FLAGS_shards);
  options.logit_std = absl::GetFlag(FLAGS_logit_std);
  options.seed = absl::GetFlag(FLAGS_seed);
  return options;
}

absl::Status Run(const std::vector<std::string>& arguments) {
  if (!arguments.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("unexpected argument '", arguments[0], "'"));
  }
  const std::string out = absl::GetFlag(FLAGS_out);
  if (out.empty()) return absl::InvalidArgumentError("--out=DIR is needed");
  BFIO_ASSIGN_OR_RETURN(const CheckpointOptions options, ReadOptions());
  return WriteRandomCheckpoint(options, out);
}

}  // namespace

int main(int argc, char** argv) {
  const bfio::ProgramInfo info = {"bfio_make_checkpoint", BFIO_VERSION, kUsage};
  const std::vector<std::string> arguments = bfio::InitProgram(argc, argv, info);
  const absl::Status status = Run(arguments);
  return status.ok() ? 0 : bfio::ExitWith(info, status);
}
