// Real programs as child processes, for integration tests.
//
// Purpose: starts a built program with its output in a file, reads what it printed, ends it. A Process that
// goes out of scope kills its child, so that a failing test leaves no process behind. One thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace bfio::testing {

// Factor on the timeouts of tests in builds whose programs are slow, and on the durations that they watch.
#if defined(BFIO_TSAN) || defined(__SANITIZE_ADDRESS__)
inline constexpr int kSlowdown = 4;
#else
inline constexpr int kSlowdown = 1;
#endif

class Process {
 public:
  // `program` is a name in build/bin or build/tests, or a path. Standard output and error are written to
  // files in the test's directory. `wrapper` is a command that is put before the program and finally executes
  // it (ip netns exec NAME, env A=B).
  Process(const std::string& program, const std::vector<std::string>& args,
          const std::vector<std::string>& wrapper = {});
  ~Process();
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;

  void Signal(int number);

  // The exit code, or 128 + signal if it was killed; empty if it still runs after `timeout`.
  std::optional<int> Wait(absl::Duration timeout);

  // The content of standard output, and of standard error, so far.
  std::string Stdout() const;
  std::string Stderr() const;

  // Waits until standard output contains `text`; false after `timeout` or when the program ends without it.
  bool WaitForOutput(const std::string& text, absl::Duration timeout);

  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  std::optional<int> code_;
  std::string out_path_, err_path_;
};

// Runs a program to its end. The code is -1 if it did not end in time (it is then killed).
struct RunResult {
  int code = -1;
  std::string out, err;
};
RunResult RunProgram(const std::string& program, const std::vector<std::string>& args,
                     absl::Duration timeout = kSlowdown * absl::Seconds(120));

// Whether the condition holds, now or before `patience` is over.
template <typename Condition>
bool Eventually(const Condition& condition, absl::Duration patience = kSlowdown * absl::Seconds(60)) {
  const absl::Time give_up = MonotonicNow() + patience;
  while (!condition() && MonotonicNow() < give_up) absl::SleepFor(absl::Milliseconds(5));
  return condition();
}

// The address that follows `before` in the text that a program has printed: up to a comma, slash, space or
// line's end.
std::string AddressAfter(const std::string& before, const std::string& text);

// How often `part` occurs in `text`.
size_t CountOf(const std::string& text, const std::string& part);

// Writes certificates of deploy/make_certs, with these flags, into a new folder.
void MakeCerts(const std::string& folder, const std::string& flags = "--for-tests");

std::string ReadFile(const std::string& path);

// A column of a worker's step log, by line; empty if there is none of this name.
std::vector<int64_t> StepLogColumn(const std::string& path, const std::string& name);

// A directory for the files of this test process, removed at exit.
std::string TestDirectory();

}  // namespace bfio::testing
