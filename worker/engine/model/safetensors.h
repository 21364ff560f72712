// Tensors in a file: a read-only mapping of a *.safetensors file. A checked view of every tensor, without a
// copy. The header is untrusted: its length, JSON, dtypes, shapes, offsets, coverage, duplicates and
// alignment are checked before any data is accessed, in memory bounded by the header's size (at most 100 MB,
// the format's limit). Errors name file and tensor. Threads: immutable once open; any thread may read. A file
// that is truncated while it is mapped ends the reading process (mapped_file.h): replace checkpoints by
// renaming.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/engine/model/mapped_file.h"

namespace bfio::worker {

enum class DType { kBF16, kF16, kF32 };

// Bytes of one element.
int64_t SizeOf(DType dtype);
// "BF16", "F16" or "F32", as the files spell it.
absl::string_view DTypeName(DType dtype);

// A tensor in memory that it does not own: row-major, little-endian, without gaps.
struct TensorView {
  DType dtype = DType::kF32;
  // Empty for a scalar. No dimension is negative; the product times SizeOf(dtype) is within the file's size.
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

// Checks the bytes of one file and returns its tensors, whose `data` points into `file`. Every error message
// begins with `path`. INVALID_ARGUMENT: malformed; UNIMPLEMENTED: a dtype other than BF16, F16 and F32.
// REQUIRES: `file` begins at a multiple of 8 in memory.
absl::StatusOr<TensorMap> ParseSafetensors(absl::Span<const std::byte> file, absl::string_view path);

// One mapped file. Views are valid while it exists.
class SafetensorsFile {
 public:
  // As ParseSafetensors; NOT_FOUND: no such file.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const TensorMap& tensors() const { return tensors_; }

 private:
  SafetensorsFile(MappedFile file, TensorMap tensors)
      : file_(std::move(file)), tensors_(std::move(tensors)) {}

  const MappedFile file_;
  const TensorMap tensors_;
};

}  // namespace bfio::worker
