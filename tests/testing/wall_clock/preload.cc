// A library to preload: shifts the program's wall clock by an offset that a file contains.
//
// Purpose: tests programs under changes of the machine's clock without changing it. It replaces the C
// library's functions that read the wall clock, and waits until a wall-clock time: futex system calls (as of
// abseil) and pthread_cond_timedwait (of std::condition_variable). These waits look at the clock every
// kSlice, so that a wait under way notices a jump, as it would in the kernel. Not covered: other timed waits
// of the C library, timerfd, files' times.
//
// BFIO_WALL_CLOCK names the file: eight bytes, nanoseconds, which may change at any time (wall_clock.h).
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

namespace {

constexpr int64_t kSecond = 1'000'000'000, kSlice = 10'000'000;

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

int RealClock(clockid_t clock, timespec* now) {
  static auto* const next = Next<int(clockid_t, timespec*)>("clock_gettime");
  return next(clock, now);
}

int64_t Ahead() {
  static const std::atomic<int64_t>* const ahead = []() -> const std::atomic<int64_t>* {
    const char* path = getenv("BFIO_WALL_CLOCK");
    const int file = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) abort();
    void* memory = mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) abort();
    close(file);
    return static_cast<const std::atomic<int64_t>*>(memory);
  }();
  return ahead->load(std::memory_order_relaxed);
}

int64_t Nanoseconds(const timespec& time) {
  return time.tv_sec * kSecond + time.tv_nsec;
}

timespec Timespec(int64_t nanoseconds) {
  return {nanoseconds / kSecond, nanoseconds % kSecond};
}

int64_t WallNow() {
  timespec now;
  RealClock(CLOCK_REALTIME, &now);
  return Nanoseconds(now) + Ahead();
}

using SystemCall = long(long, ...);

timespec MonotonicIn(int64_t nanoseconds) {
  timespec now;
  RealClock(CLOCK_MONOTONIC, &now);
  return Timespec(Nanoseconds(now) + nanoseconds);
}

// The futex wait of `operation` until the wall-clock time `until`.
long WaitByWallClock(SystemCall* next, long word, int operation, long expected, const timespec& until,
                     long mask) {
  for (;;) {
    const int64_t left = Nanoseconds(until) - WallNow();
    if (left <= 0) {
      errno = ETIMEDOUT;
      return -1;
    }
    const timespec slice_end = MonotonicIn(std::min(left, kSlice));
    const long result =
        next(SYS_futex, word, operation & ~FUTEX_CLOCK_REALTIME, expected, &slice_end, nullptr, mask);
    if (result == 0 || errno != ETIMEDOUT) return result;
  }
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const int result = RealClock(clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    *now = Timespec(Nanoseconds(*now) + Ahead());
  }
  return result;
}

int gettimeofday(timeval* now, void*) noexcept {
  const timespec time = Timespec(WallNow());
  *now = {time.tv_sec, time.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* now) noexcept {
  const time_t seconds = WallNow() / kSecond;
  if (now != nullptr) *now = seconds;
  return seconds;
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until) {
  const int64_t left = Nanoseconds(*until) - WallNow();
  const timespec slice_end = MonotonicIn(std::min(std::max(left, int64_t{0}), kSlice));
  const int result = pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, &slice_end);
  // Reports a spurious wakeup, which callers must expect, unless the time has come: a signal between two of
  // these short waits would otherwise be missed.
  if (result != ETIMEDOUT || Nanoseconds(*until) <= WallNow()) return result;
  return 0;
}

long syscall(long number, ...) noexcept {
  static auto* const next = Next<SystemCall>("syscall");
  va_list list;
  va_start(list, number);
  long word[6];
  for (long& one : word) one = va_arg(list, long);
  va_end(list);
  const int operation = static_cast<int>(word[1]);
  if (number == SYS_futex && (operation & FUTEX_CLOCK_REALTIME) != 0 &&
      (operation & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET && word[3] != 0) {
    return WaitByWallClock(next, word[0], operation, word[2], *reinterpret_cast<const timespec*>(word[3]),
                           word[5]);
  }
  return next(number, word[0], word[1], word[2], word[3], word[4], word[5]);
}

}  // extern "C"
