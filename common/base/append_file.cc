#include "common/base/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace bfio {

absl::StatusOr<AppendFile> AppendFile::Open(const std::string& path, Mode mode, int permissions) {
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (mode == Mode::kCreate ? O_EXCL : 0);
  AppendFile file;
  file.path_ = path;
  file.fd_ = open(path.c_str(), flags, permissions);
  if (file.fd_ < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  struct stat info = {};
  if (fstat(file.fd_, &info) == 0 && S_ISREG(info.st_mode)) file.bytes_ = info.st_size;
  return file;
}

AppendFile::~AppendFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status AppendFile::Append(absl::string_view data) {
  while (!data.empty()) {
    const ssize_t wrote = write(fd_, data.data(), data.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path_));
    bytes_ += wrote;
    data.remove_prefix(static_cast<size_t>(wrote));
  }
  return absl::OkStatus();
}

bool IsSpecialFile(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
}

}  // namespace bfio
