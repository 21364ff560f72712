#include "worker/engine/model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "worker/engine/model/bus_error.h"

namespace bfio::worker {

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a pipe without a writer must not block.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be opened"));
  struct stat info = {};
  if (fstat(fd, &info) != 0) {
    const int error = errno;
    close(fd);
    return absl::ErrnoToStatus(error, absl::StrCat(path, ": cannot be examined"));
  }
  if (!S_ISREG(info.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a regular file"));
  }
  const size_t size = static_cast<size_t>(info.st_size);
  if (size == 0) {
    close(fd);
    return MappedFile(path, nullptr, 0);
  }
  void* const begin = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  close(fd);
  if (begin == MAP_FAILED) {
    return absl::ErrnoToStatus(error, absl::StrCat(path, ": cannot be mapped"));
  }
  RegisterMappedRange(begin, size, path);
  return MappedFile(path, static_cast<const std::byte*>(begin), size);
}

MappedFile::~MappedFile() {
  if (begin_ == nullptr) return;
  ForgetMappedRange(begin_);
  munmap(const_cast<std::byte*>(begin_), size_);
}

}  // namespace bfio::worker
