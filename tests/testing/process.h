// Real programs as child processes, for integration tests.
//
// Purpose: starts a built program with its output in a file, finds out what it printed, ends it; a Process
// that goes out of scope kills its child, so a failing test leaves nothing running. One thread.
#ifndef BFIO_TESTS_TESTING_PROCESS_H_
#define BFIO_TESTS_TESTING_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace bfio::testing {

// By how much tests' patience grows, and what they watch slows down, in builds whose programs are slow.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr int kSlowdown = 4;
#else
inline constexpr int kSlowdown = 1;
#endif

class Process {
 public:
  // `program` is a name in build/bin, or a path. Standard output and error go to a file of their own under
  // the test's directory. `wrapper` is put before the program (ip netns exec NAME, env A=B): words that
  // become it in the end.
  Process(const std::string& program, const std::vector<std::string>& args,
          const std::vector<std::string>& wrapper = {});
  ~Process();
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;

  void Signal(int number);

  // The exit code, 128 + signal if it was killed; nothing if it still runs after `timeout`.
  std::optional<int> Wait(absl::Duration timeout);

  // Standard output, and standard error, so far.
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

// Runs a program to its end. -1 as code when it did not end in time (it is killed then).
struct RunResult {
  int code = -1;
  std::string out, err;
};
RunResult RunProgram(const std::string& program, const std::vector<std::string>& args,
                     absl::Duration timeout = kSlowdown * absl::Seconds(120));

// A directory for this test process's files, removed at exit.
std::string TestDirectory();

}  // namespace bfio::testing

#endif  // BFIO_TESTS_TESTING_PROCESS_H_
