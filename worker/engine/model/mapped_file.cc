#include "worker/engine/model/mapped_file.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>

#include "absl/strings/str_cat.h"

namespace bfio::worker {
namespace {

// Data that a signal handler may read: no locks, no allocation, fixed addresses.
struct Range {
  // 0: free. 1: being written.
  std::atomic<uintptr_t> begin = 0;
  std::atomic<size_t> size = 0;
  std::array<char, 1024> path = {};
};
std::array<Range, 4096> ranges;
std::atomic<const char*> program_name = nullptr;
std::atomic<bool> told = false;

void Say(const char* text) {
  // There is no way to report that standard error cannot be written.
  if (write(STDERR_FILENO, text, strlen(text)) < 0) return;
}

void OnBusError(int, siginfo_t* info, void*) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Range& range : ranges) {
    const uintptr_t begin = range.begin.load(std::memory_order_acquire);
    if (begin <= 1 || at < begin || at - begin >= range.size.load(std::memory_order_relaxed)) continue;
    // Several threads may arrive here at once: one writes the message.
    if (told.exchange(true)) {
      for (;;) pause();
    }
    Say(program_name.load());
    Say(": ");
    Say(range.path.data());
    Say(": was truncated or became unreadable while it was in use (replace files by renaming)\n");
    _exit(1);
  }
  // Restores the default action: the instruction is executed again and raises SIGBUS again.
  signal(SIGBUS, SIG_DFL);
}

}  // namespace

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
  if (begin == MAP_FAILED) return absl::ErrnoToStatus(error, absl::StrCat(path, ": cannot be mapped"));
  RegisterMappedRange(begin, size, path);
  return MappedFile(path, static_cast<const std::byte*>(begin), size);
}

MappedFile::~MappedFile() {
  if (begin_ == nullptr) return;
  ForgetMappedRange(begin_);
  munmap(const_cast<std::byte*>(begin_), size_);
}

void ExitOnBusError(const char* program) {
  program_name = program;
  struct sigaction action = {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

void RegisterMappedRange(const void* begin, size_t size, const std::string& path) {
  for (Range& range : ranges) {
    uintptr_t free = 0;
    if (!range.begin.compare_exchange_strong(free, 1)) continue;
    range.size = size;
    std::snprintf(range.path.data(), range.path.size(), "%s", path.c_str());
    range.begin.store(reinterpret_cast<uintptr_t>(begin), std::memory_order_release);
    return;
  }
}

void ForgetMappedRange(const void* begin) {
  for (Range& range : ranges) {
    if (range.begin.load() == reinterpret_cast<uintptr_t>(begin)) {
      range.begin.store(0);
      return;
    }
  }
}

}  // namespace bfio::worker
