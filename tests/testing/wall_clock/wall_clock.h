// A wall clock of a program's own, which a test may set.
//
// Purpose: clocks that jump while a program runs. Programs are started with Wrapper() in front
// (testing::Process); a test case runs itself again under such a clock with WallClockOfTest.
// Threads: any may Jump.
#ifndef BFIO_TESTS_TESTING_WALL_CLOCK_WALL_CLOCK_H_
#define BFIO_TESTS_TESTING_WALL_CLOCK_WALL_CLOCK_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace bfio::testing {

class WallClock {
 public:
  // One that goes as the machine's until it jumps; its file is in TestDirectory().
  WallClock();
  ~WallClock();
  WallClock(const WallClock&) = delete;
  WallClock& operator=(const WallClock&) = delete;

  // The one that this process runs under; nullptr: it goes by the machine's.
  static std::unique_ptr<WallClock> Mine();

  // Why programs of this build cannot have one; empty: they can.
  static std::string WhyNot();

  // Words before a program's that make it run under this clock.
  std::vector<std::string> Wrapper() const;

  void Jump(absl::Duration by);

 private:
  explicit WallClock(std::string path);

  const std::string path_;
  std::atomic<int64_t>* ahead_ns_;
};

// The clock that the test case which calls this runs under. nullptr: the case has run in a process of its
// own, under a clock of its own, and has failed if it failed there; or it is skipped, as programs of this
// build cannot have one. Return then.
std::unique_ptr<WallClock> WallClockOfTest();

}  // namespace bfio::testing

#endif  // BFIO_TESTS_TESTING_WALL_CLOCK_WALL_CLOCK_H_
