// Wakes a thread that waits for file descriptors. Threads: any.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

namespace bfio {

class Waker {
 public:
  Waker() = default;
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;
  ~Waker() { close(fd_); }

  // Readable from Wake to Clear. Negative when no file descriptor was free: then nothing wakes the thread.
  int fd() const { return fd_; }
  void Wake() const {
    const uint64_t one = 1;
    // Fails only when the counter is full, so that it is readable already.
    (void)!write(fd_, &one, sizeof(one));
  }
  void Clear() const {
    uint64_t wakes = 0;
    (void)!read(fd_, &wakes, sizeof(wakes));
  }

 private:
  const int fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
};

}  // namespace bfio
