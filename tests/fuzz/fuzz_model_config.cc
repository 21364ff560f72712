// config.json of a model, and the tensors that it requires; eos_token_id of generation_config.json.
#include <algorithm>

#include "tests/fuzz/fuzz.h"
#include "worker/engine/model/layout.h"
#include "worker/engine/model/model_config.h"

namespace {

void ReadEosTokens(absl::string_view text) {
  constexpr int64_t kVocabulary = 32000;
  const auto tokens = bfio::worker::ParseGenerationEosTokens(text, "fuzz", kVocabulary);
  if (!tokens.ok()) return;
  bfio::fuzz::Check(std::is_sorted(tokens->begin(), tokens->end()) &&
                        std::adjacent_find(tokens->begin(), tokens->end()) == tokens->end(),
                    "ascending, each once");
  for (const int32_t token : *tokens)
    bfio::fuzz::Check(token >= 0 && token < kVocabulary, "within the vocabulary");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ReadEosTokens(bfio::fuzz::Text(data, size));
  const auto config = bfio::worker::ParseModelConfig(bfio::fuzz::Text(data, size), "fuzz");
  const absl::string_view why = config.status().message();
  bfio::fuzz::Check(config.ok() || (why.find("fuzz: ") == 0 && why.find('\n') == why.npos),
                    "an error is one line");
  if (!config.ok()) return 0;
  bfio::fuzz::Check(config->heads % config->kv_heads == 0 && config->head_dim % 2 == 0, "heads have a size");
  // There is a list per layer, so only models with a plausible number of layers are expanded.
  if (config->layers > 64) return 0;
  for (const auto& spec : bfio::worker::ModelTensors(*config)) {
    for (const int64_t length : spec.shape) bfio::fuzz::Check(length > 0, "no tensor is empty");
  }
  return 0;
}
