#include "common/base/read_file.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace bfio {

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t most_bytes) {
  constexpr int kPipePatienceMs = 1000;
  // O_NONBLOCK: opening a pipe without a writer would block.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  std::string text(most_bytes + 1, '\0');
  size_t size = 0;
  ssize_t got = fd < 0 ? -1 : 1;
  while (got > 0 && size < text.size()) {
    got = read(fd, text.data() + size, text.size() - size);
    if (got > 0) size += static_cast<size_t>(got);
    pollfd pipe = {fd, POLLIN, 0};
    if (got < 0 && (errno == EINTR || (errno == EAGAIN && poll(&pipe, 1, kPipePatienceMs) > 0))) got = 1;
  }
  if (fd >= 0) close(fd);
  if (got < 0) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  text.resize(size);
  return text;
}

}  // namespace bfio
