// The tensors of a checkpoint in one or more files. Locates each tensor, and checks the index and the shards
// against each other. Threads: immutable once open; any thread may read.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/engine/model/safetensors.h"

namespace bfio::worker {

// Tensor name -> file name, as in a model.safetensors.index.json.
using WeightMap = std::map<std::string, std::string, std::less<>>;

// Parses the text of an index. File names are plain and end in ".safetensors". Every error message begins
// with `path`. INVALID_ARGUMENT: malformed.
absl::StatusOr<WeightMap> ParseWeightMap(absl::string_view json, absl::string_view path);

// The tensors of a checkpoint directory: model.safetensors.index.json and its shards when there is an index,
// model.safetensors otherwise. The index and the shards must agree on which tensor is in which file. A
// shard's name is a plain file name (a symbolic link may point out of the directory, as in a download cache).
class Checkpoint {
 public:
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& directory);

  const TensorMap& tensors() const { return tensors_; }
  // Path of the file that holds the tensor. REQUIRES: tensors() has it.
  const std::string& FileOf(absl::string_view name) const;

 private:
  Checkpoint() = default;
  void Add(std::unique_ptr<SafetensorsFile> file);
  absl::Status AddShards(const std::string& directory, const std::string& index);

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  TensorMap tensors_;
  std::map<std::string, const SafetensorsFile*, std::less<>> file_of_;
};

}  // namespace bfio::worker
