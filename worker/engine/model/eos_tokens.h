// The end-of-sequence tokens in a config.json or a generation_config.json.
//
// Threads: pure functions.
#ifndef BFIO_WORKER_ENGINE_MODEL_EOS_TOKENS_H_
#define BFIO_WORKER_ENGINE_MODEL_EOS_TOKENS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/engine/model/json_fields.h"

namespace bfio::worker {

// Reads the field `eos_token_id`: a number, a list of numbers or null (none). The result is ascending without
// duplicates, each in [0, vocab). `absent`: the result when the field is missing.
std::vector<int32_t> ReadEosTokens(JsonFields& fields, const std::vector<int32_t>& absent, int64_t vocab);

// The same from the text of a generation_config.json; empty when it names none.
absl::StatusOr<std::vector<int32_t>> ParseGenerationEosTokens(absl::string_view json, absl::string_view name,
                                                              int64_t vocab);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_MODEL_EOS_TOKENS_H_
