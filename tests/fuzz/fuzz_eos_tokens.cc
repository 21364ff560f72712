// eos_token_id of generation_config.json.
#include <algorithm>

#include "tests/fuzz/fuzz.h"
#include "worker/engine/model/model_config.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kVocabulary = 32000;
  const auto tokens =
      bfio::worker::ParseGenerationEosTokens(bfio::fuzz::Text(data, size), "fuzz", kVocabulary);
  if (!tokens.ok()) return 0;
  bfio::fuzz::Check(std::is_sorted(tokens->begin(), tokens->end()) &&
                        std::adjacent_find(tokens->begin(), tokens->end()) == tokens->end(),
                    "ascending, each once");
  for (const int32_t token : *tokens)
    bfio::fuzz::Check(token >= 0 && token < kVocabulary, "within the vocabulary");
  return 0;
}
