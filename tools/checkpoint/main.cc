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

using bfio::worker::ModelConfig;

constexpr char kUsage[] =
    "bfio_make_checkpoint writes a Llama with random weights (config.json and safetensors, bf16) that\n"
    "bfio_worker and Hugging Face transformers load. The same flags always give the same bytes.\n\n"
    "  bfio_make_checkpoint --out=tiny\n"
    "  bfio_make_checkpoint --out=llama-8b --layers=32 --hidden=4096 --intermediate=14336 --heads=32 \\\n"
    "      --kv_heads=8 --vocab=128256 --max_positions=131072      # Llama 3.1 8B's shapes, 16 GB";

absl::StatusOr<std::vector<int32_t>> ParseTokens(const std::string& text) {
  std::vector<int32_t> tokens;
  for (const absl::string_view id : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(id, &tokens.emplace_back()))
      return absl::InvalidArgumentError(absl::StrCat("'", id, "' is not a number"));
  }
  return tokens;
}

// WriteRandomCheckpoint checks what has no bounds here.
void AddOptions(bfio::OptionTable& table, std::string& out, ModelConfig& model) {
  table.Add("out", &out, "directory to write; created if missing, must be empty");
  table.Add("layers", &(model.layers = 4), "layers");
  table.Add("hidden", &(model.hidden = 256), "hidden size");
  table.Add("intermediate", &model.intermediate, "hidden size of the MLP; 0: three times --hidden");
  table.Add("heads", &(model.heads = 8), "query heads");
  table.Add("kv_heads", &(model.kv_heads = 4), "key and value heads; must divide --heads");
  table.Add("head_dim", &model.head_dim, "head dimension; 0: --hidden / --heads");
  table.Add("vocab", &(model.vocab = 512), "vocabulary size");
  table.Add("max_positions", &(model.max_positions = 8192), "maximum sequence length, in tokens");
  table.AddParsed("eos_token_ids", &(model.eos_token_ids = {2}), "2",
                  "end-of-sequence token ids, separated by commas; may be empty", ParseTokens);
}

absl::Status Run(const std::string& out, ModelConfig& model) {
  if (out.empty()) return absl::InvalidArgumentError("--out=DIR is required");
  if (model.intermediate == 0) model.intermediate = 3 * model.hidden;
  // Stays 0 when it cannot be computed; WriteRandomCheckpoint then reports the error.
  if (model.head_dim == 0 && model.heads > 0 && model.hidden % model.heads == 0)
    model.head_dim = model.hidden / model.heads;
  return bfio::checkpoint::WriteRandomCheckpoint(model, out);
}

}  // namespace

int main(int argc, char** argv) {
  const bfio::ProgramInfo info = {"bfio_make_checkpoint", bfio::Version(), kUsage};
  std::string out;
  ModelConfig model;
  bfio::OptionTable table;
  AddOptions(table, out, model);
  bfio::InitWithoutArguments(argc, argv, info, table);
  const absl::Status status = Run(out, model);
  return status.ok() ? 0 : bfio::ExitWith(info, status);
}
