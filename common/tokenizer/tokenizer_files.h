// The files of a model's tokenizer, read from the model's folder. Gateways fetch these files. The router
// reads them from --tokenizer=DIR, or gets them from a worker. Weights are not touched. Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bfio {

// Names without a path, and contents; ascending by name.
using TokenizerFiles = std::vector<std::pair<std::string, std::string>>;

// The most that a worker sends to the router, in bytes: the largest published tokenizers have 40 MiB.
inline constexpr int64_t kMaxOfferedTokenizerBytes = int64_t{64} << 20;

// Whether a file with this name is part of a tokenizer: one that tokenizing requires (`needed`), or one with
// the tokenizer's settings.
bool IsTokenizerFile(absl::string_view name, bool* needed = nullptr);

// NOT_FOUND: the folder has no file that is needed; INVALID_ARGUMENT: the files have more than `max_bytes`
// together. The message begins with the path.
absl::StatusOr<TokenizerFiles> ReadTokenizerFiles(const std::string& directory, int64_t max_bytes);

}  // namespace bfio
