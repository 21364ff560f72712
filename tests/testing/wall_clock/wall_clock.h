// A wall clock for a single program, which a test may set.
//
// Purpose: tests of clocks that jump while a program runs. Programs are started with Wrapper() in front
// (testing::Process); a test case runs itself again under such a clock with WallClockOfTest.
// Threads: any may call Jump.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace bfio::testing {

class WallClock {
 public:
  // A clock that equals the machine's until it jumps; its file is in TestDirectory().
  WallClock();
  ~WallClock();
  WallClock(const WallClock&) = delete;
  WallClock& operator=(const WallClock&) = delete;

  // The clock under which this process runs; nullptr: the machine's.
  static std::unique_ptr<WallClock> Mine();

  // The reason why programs of this build cannot have such a clock; empty if they can.
  static std::string WhyNot();

  // Arguments before a program's name that make it run under this clock.
  std::vector<std::string> Wrapper() const;

  void Jump(absl::Duration by);

 private:
  explicit WallClock(std::string path);

  const std::string path_;
  std::atomic<int64_t>* ahead_ns_;
};

// The clock under which the calling test case runs. nullptr: the case has run in a process with its own clock
// (and has failed if it failed there), or it is skipped because programs of this build cannot have such a
// clock. The caller then returns.
std::unique_ptr<WallClock> WallClockOfTest();

}  // namespace bfio::testing
