// main() of a test program with cases that are known to fail: a defect that a test describes and that is not
// fixed yet.
//
// KNOWN_OPEN, a list in the program's CMakeLists.txt, names them. Every case asserts the correct behaviour. A
// case on the list is excluded from the program's own run, so it counts neither as passed nor as failed. It
// runs in a child process instead, and is printed as "known open: CASE". The program fails when such a case
// passes (remove it from the list: it is fixed) and when it ends otherwise than by a failed assertion (it
// crashed, or there is no such case). A case that skips itself in the child, because a program that it needs
// is missing, is printed as skipped.
//
// With $BFIO_KNOWN_OPEN_FILE, which tests/run sets, each is also a line of that file; tests/sum_results
// prints them and their number. With a --gtest_filter everything that matches runs here, as in any test.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/testing/process.h"

namespace bfio::testing {
namespace {

std::vector<std::string> KnownOpen() {
  return absl::StrSplit(BFIO_KNOWN_OPEN, ':', absl::SkipEmpty());
}

// One write, because the programs of a parallel run share the file.
void Tell(const std::string& program, const std::string& name) {
  std::printf("known open: %s\n", name.c_str());
  const char* const path = getenv("BFIO_KNOWN_OPEN_FILE");
  if (path == nullptr) return;
  const std::string line = absl::StrCat(program, ": ", name, "\n");
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0 || write(file, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    std::printf("cannot write %s\n", path);
  }
  if (file >= 0) close(file);
}

// False when the case does not fail as the list says. `program` is a path.
bool StillOpen(const std::string& program, const std::string& name) {
  // The child must not write to this run's results.
  Process child(program, {absl::StrCat("--gtest_filter=", name)}, {"env", "-u", "GTEST_OUTPUT"});
  const std::optional<int> code = child.Wait(kSlowdown * absl::Minutes(3));
  const std::string out = child.Stdout();
  if (code == 1 && absl::StrContains(out, absl::StrCat("[  FAILED  ] ", name))) {
    Tell(std::filesystem::path(program).filename(), name);
    return true;
  }
  if (code == 0 && absl::StrContains(out, absl::StrCat("[  SKIPPED ] ", name))) {
    std::printf("known open, skipped: %s\n", name.c_str());
    return true;
  }
  if (!code.has_value()) {
    std::printf("%s is on the list KNOWN_OPEN and does not end\n%s%s", name.c_str(), out.c_str(),
                child.Stderr().c_str());
  } else if (code == 0) {
    std::printf("%s is on the list KNOWN_OPEN and passes, or does not exist: take it off the list\n%s",
                name.c_str(), out.c_str());
  } else {
    std::printf("%s is on the list KNOWN_OPEN and ended with code %d\n%s%s", name.c_str(), *code, out.c_str(),
                child.Stderr().c_str());
  }
  return false;
}

int Main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (GTEST_FLAG_GET(filter) != "*" || GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();
  const std::vector<std::string> known_open = KnownOpen();
  if (!known_open.empty()) GTEST_FLAG_SET(filter, absl::StrCat("*-", absl::StrJoin(known_open, ":")));
  int code = RUN_ALL_TESTS();
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  for (const std::string& name : known_open) {
    if (!StillOpen(program, name)) code = 1;
  }
  return code;
}

}  // namespace
}  // namespace bfio::testing

int main(int argc, char** argv) {
  return bfio::testing::Main(argc, argv);
}
