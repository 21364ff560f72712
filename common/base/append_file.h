// An append-only file, for logs. Open and append, with errors as values. When Append returns, the data is in
// the file (in the system's cache, not necessarily on the disk). Threads: used by one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bfio {

class AppendFile {
 public:
  enum class Mode {
    kCreate,  // ALREADY_EXISTS when the file exists
    kAppend,  // keeps the existing content
  };
  // The permissions of a new file, less the process's umask: logs are not for every user of a machine.
  static constexpr int kLogPermissions = 0640;
  // The message of an error names the file and the reason.
  static absl::StatusOr<AppendFile> Open(const std::string& path, Mode mode,
                                         int permissions = kLogPermissions);

  AppendFile() = default;
  AppendFile(AppendFile&& other) noexcept
      : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), bytes_(other.bytes_) {}
  AppendFile& operator=(AppendFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(fd_, other.fd_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~AppendFile();

  // REQUIRES: open. After an error the file may hold a part of `data`.
  absl::Status Append(absl::string_view data);

  bool is_open() const { return fd_ >= 0; }
  // Size of the file: the content that existed and what has been appended.
  int64_t bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
  int64_t bytes_ = 0;
};

// Whether `path` exists and is not a regular file: a device, a pipe.
bool IsSpecialFile(const std::string& path);

}  // namespace bfio
