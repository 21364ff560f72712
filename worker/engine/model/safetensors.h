// Tensors in files: read-only maps of *.safetensors, one or many.
//
// Purpose: a checked view of every tensor, without a copy. The header is untrusted: length, JSON, dtypes,
// shapes, offsets, coverage, duplicates and alignment are checked before anything is looked at, in memory
// bounded by the header's own size (at most 100 MB, the format's limit). Errors name file and tensor.
// Threads: immutable once open, any thread may read. A file that is truncated while it is mapped kills the
// reader (SIGBUS), as with every map; replace checkpoints by renaming.
#ifndef BFIO_WORKER_ENGINE_MODEL_SAFETENSORS_H_
#define BFIO_WORKER_ENGINE_MODEL_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bfio::worker {

enum class DType { kBF16, kF16, kF32 };

// Bytes of one element.
int64_t SizeOf(DType dtype);
// "BF16", "F16" or "F32", as the files spell it.
absl::string_view DTypeName(DType dtype);

// A tensor in somebody's memory: row-major, little-endian, without gaps.
struct TensorView {
  DType dtype = DType::kF32;
  // Empty for a scalar. No factor is negative; the product times SizeOf(dtype) fits the file it came from.
  std::vector<int64_t> shape;
  // Aligned to SizeOf(dtype). Null when the model has no such tensor.
  const std::byte* data = nullptr;

  bool present() const { return data != nullptr; }
  int64_t elements() const {
    int64_t product = 1;
    for (const int64_t size : shape) product *= size;
    return product;
  }
  int64_t bytes() const { return elements() * SizeOf(dtype); }
};

using TensorMap = std::map<std::string, TensorView, std::less<>>;

// One file. Views are good while it lives.
class SafetensorsFile {
 public:
  // NOT_FOUND: no such file; INVALID_ARGUMENT: it is malformed; UNIMPLEMENTED: a dtype other than BF16, F16,
  // F32.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);

  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;
  ~SafetensorsFile();

  const std::string& path() const { return path_; }
  const TensorMap& tensors() const { return tensors_; }

 private:
  SafetensorsFile(std::string path, const std::byte* begin, size_t size);

  const std::string path_;
  // The whole file.
  const std::byte* const begin_;
  const size_t size_;
  TensorMap tensors_;
};

// The tensors of a checkpoint directory: model.safetensors.index.json and its shards when there is an index,
// model.safetensors otherwise. The index and the shards must agree on which tensor is where; a shard's name
// is a plain file name (a symbolic link may lead out of the directory, as in a download cache).
class Checkpoint {
 public:
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& directory);

  const TensorMap& tensors() const { return tensors_; }
  // Path of the file that holds the tensor. REQUIRES: tensors() has it.
  const std::string& FileOf(absl::string_view name) const;
  // Sum over all tensors.
  int64_t bytes() const { return bytes_; }

 private:
  Checkpoint() = default;
  void Add(std::unique_ptr<SafetensorsFile> file);

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  TensorMap tensors_;
  std::map<std::string, const SafetensorsFile*, std::less<>> file_of_;
  int64_t bytes_ = 0;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_MODEL_SAFETENSORS_H_
