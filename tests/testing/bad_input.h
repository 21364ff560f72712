// Helpers for tests of bad input: files to be refused, and the one-line error. Headers only; GoogleTest's
// thread.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/cluster.h"

namespace bfio::testing {

// Writes a file into the test directory; returns its path.
inline std::string WriteFile(const std::string& name, const std::string& text) {
  const std::string path = absl::StrCat(TestDirectory(), "/", name);
  std::ofstream(path) << text;
  return path;
}

// The program must end with `code` and write one line to standard error, which contains `part`.
inline void ExpectOneLine(const std::string& program, const std::vector<std::string>& args, int code,
                          const std::string& part) {
  const RunResult run = RunProgram(program, args, kSlowdown * absl::Seconds(30));
  EXPECT_EQ(run.code, code) << program << ": " << run.err;
  EXPECT_THAT(run.err, ::testing::HasSubstr(part));
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
}

}  // namespace bfio::testing
