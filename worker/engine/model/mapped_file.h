// A regular file, mapped read-only. Gives a file's bytes without a copy; errors name the file. Threads:
// immutable once open.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace bfio::worker {

// A mapped file that is truncated or becomes unreadable raises SIGBUS; no check beforehand can prevent it. A
// program that maps checkpoints installs ExitOnBusError once: then one line names the file, and the exit code
// is 1. Overwriting a file in place is not detected: replace checkpoints by renaming.

// From now on a bus error in a registered range writes "PROGRAM: FILE: ..." to standard error and exits with
// 1. A bus error elsewhere ends the process by the signal. `program` is a literal.
void ExitOnBusError(const char* program);

// The handler looks up files by these ranges. Ranges beyond a few thousand at a time are not registered.
void RegisterMappedRange(const void* begin, size_t size, const std::string& path);
void ForgetMappedRange(const void* begin);

class MappedFile {
 public:
  // NOT_FOUND: no such file; INVALID_ARGUMENT: not a regular file (a pipe, a folder); PERMISSION_DENIED.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept
      : path_(std::move(other.path_)),
        begin_(std::exchange(other.begin_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  // Aligned to a page.
  absl::Span<const std::byte> bytes() const { return {begin_, size_}; }
  absl::string_view text() const { return {reinterpret_cast<const char*>(begin_), size_}; }

 private:
  MappedFile(std::string path, const std::byte* begin, size_t size)
      : path_(std::move(path)), begin_(begin), size_(size) {}

  std::string path_;
  // Null for an empty file.
  const std::byte* begin_;
  size_t size_;
};

}  // namespace bfio::worker
