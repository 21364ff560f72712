// The files of a model that a gateway needs: its tokenizer, and the model's properties in config.json. Read
// once at startup from --tokenizer=DIR (a checkpoint's directory, or one with only the tokenizer). Weights
// are not read. Threads: immutable once made; any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/frontend/tokenizer/token_text.h"

namespace bfio::router {

// Names without a path, and contents; ascending by name.
using TokenizerFiles = std::vector<std::pair<std::string, std::string>>;

// A zip archive, uncompressed, in which gateways fetch a tokenizer, of these names and contents, in this
// order; the same input gives the same bytes. REQUIRES: names are short, and the total is below 4 GiB, the
// limit of the format.
std::string ZipArchive(const TokenizerFiles& files);

struct ModelFiles {
  // The path as given, without a slash at its end.
  std::string directory;
  // From config.json; 0 and empty where it is absent or has no value.
  uint32_t vocab_size = 0;
  std::vector<int32_t> eos_token_ids;
  int32_t bos_token_id = 0, pad_token_id = 0;
  std::string model_type;
  // Type of the weights, such as "bfloat16".
  std::string dtype;
  std::vector<std::string> architectures;
  // A zip archive of the tokenizer's files, and its SHA-256 in hexadecimal.
  std::string archive, archive_sha256;
  // Null: there is no tokenizer.json of a supported kind; `why_no_text` has the reason.
  std::shared_ptr<const TokenText> text;
  std::string why_no_text;
};

// NOT_FOUND: the directory has no tokenizer file; INVALID_ARGUMENT: config.json is invalid, or the files are
// larger than 256 MiB together. The message begins with the path.
absl::StatusOr<ModelFiles> LoadModelFiles(std::string directory);

// Name of a model for which there are files: the last part of the path, or "bfio".
std::string ModelNameOf(absl::string_view directory);

}  // namespace bfio::router
