#include "common/base/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace bfio {
namespace {

absl::Status Failed(absl::string_view action, const std::string& path, int error) {
  return absl::ErrnoToStatus(error, absl::StrCat("cannot ", action, " ", path));
}

// Creates a new file with a unique name in the directory of `path`, with the permissions that the umask
// allows (mkstemp's files are private). -1 with errno on failure.
int CreateBeside(const std::string& path, std::string* temporary) {
  static std::atomic<int> count = 0;
  while (true) {
    *temporary = absl::StrCat(path, ".", getpid(), ".", count.fetch_add(1), ".tmp");
    const int fd = open(temporary->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0 || errno != EEXIST) return fd;
  }
}

// Returns 0, or errno.
int WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

}  // namespace

absl::Status WriteFileAtomically(const std::string& path, absl::string_view text) {
  if (path.empty()) return absl::InvalidArgumentError("cannot write a file: the path is empty");
  std::string temporary;
  const int fd = CreateBeside(path, &temporary);
  if (fd < 0) return Failed("create a temporary file beside", path, errno);
  absl::Cleanup remove = [&] { unlink(temporary.c_str()); };

  int error = WriteAll(fd, text);
  if (error == 0 && fsync(fd) != 0) error = errno;
  if (close(fd) != 0 && error == 0) error = errno;
  if (error != 0) return Failed("write", path, error);

  if (std::rename(temporary.c_str(), path.c_str()) != 0)
    return Failed("move the finished file to", path, errno);
  std::move(remove).Cancel();
  return absl::OkStatus();
}

}  // namespace bfio
