// Standard error of a program as a pipe whose reader can pause.
//
// Purpose: tests programs while no process reads their log. The pipe holds one page; Block fills it, so that
// the program's next write does not fit. It outlives the program, and several programs one after the other
// may write to it. Threads: one.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/process.h"

namespace bfio::testing {

class LogPipe {
 public:
  LogPipe() {
    static int number = 0;
    path_ = absl::StrCat(TestDirectory(), "/pipe", number++);
    EXPECT_EQ(mkfifo(path_.c_str(), 0600), 0);
    // Opened for reading and writing: a program that ends does not close the pipe, and a program that opens
    // it does not wait.
    fd_ = open(path_.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    EXPECT_GE(fd_, 0);
    EXPECT_GT(fcntl(fd_, F_SETPIPE_SZ, 4096), 0);
    all_.open(path_ + ".log");
  }
  ~LogPipe() { close(fd_); }
  LogPipe(const LogPipe&) = delete;
  LogPipe& operator=(const LogPipe&) = delete;

  // Arguments before a program's name that make its standard error this pipe.
  std::vector<std::string> wrapper() const { return {"sh", "-c", "exec \"$@\" 2>\"$0\"", path_}; }

  // Reads what is available, unless the pipe is blocked. Returns the last 1 to 2 MiB of all that was read so
  // far.
  const std::string& Read() {
    constexpr size_t kKept = 1 << 20;
    char buffer[4096];
    for (ssize_t got; !blocked_ && (got = read(fd_, buffer, sizeof(buffer))) > 0;) {
      const auto end = std::remove(buffer, buffer + got, kFiller);
      text_.append(buffer, static_cast<size_t>(end - buffer));
      all_.write(buffer, end - buffer).flush();
    }
    if (text_.size() > 2 * kKept) text_.erase(0, text_.size() - kKept);
    return text_;
  }

  // Fills the pipe; nothing is read until Unblock.
  void Block() {
    blocked_ = true;
    while (write(fd_, &kFiller, 1) == 1) {
    }
  }
  void Unblock() { blocked_ = false; }

 private:
  // A byte that no program logs.
  static constexpr char kFiller = '\0';

  std::string path_, text_;
  std::ofstream all_;
  int fd_ = -1;
  bool blocked_ = false;
};

}  // namespace bfio::testing
