#include "tests/testing/wall_clock/wall_clock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/testing/process.h"

namespace bfio::testing {
namespace {

constexpr char kVariable[] = "BFIO_WALL_CLOCK";

// A wait that never ends fails the test instead of blocking it.
constexpr unsigned kPatienceSeconds = 300;

std::string NewFile() {
  static std::atomic<int> counter{0};
  return absl::StrCat(TestDirectory(), "/wall_clock", counter++);
}

std::string Library() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libbfio_wall_clock.so").string();
}

// Runs the current test case in a new process with its own wall clock; true if it passes there.
bool RunAgain() {
  const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
  const WallClock clock;
  std::vector<std::string> words = clock.Wrapper();
  words.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
  words.push_back(absl::StrCat("--gtest_filter=", test.test_suite_name(), ".", test.name()));
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    unsetenv("GTEST_OUTPUT");
    alarm(kPatienceSeconds);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  EXPECT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status) << ": a wait did not end";
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

WallClock::WallClock() : WallClock(NewFile()) {}

WallClock::WallClock(std::string path) : path_(std::move(path)) {
  const int file = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void* memory = MAP_FAILED;
  if (file >= 0 && ftruncate(file, sizeof(int64_t)) == 0)
    memory = mmap(nullptr, sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file >= 0) close(file);
  if (memory == MAP_FAILED) throw std::runtime_error("no wall clock at " + path_);
  ahead_ns_ = static_cast<std::atomic<int64_t>*>(memory);
}

WallClock::~WallClock() {
  munmap(ahead_ns_, sizeof(int64_t));
}

std::unique_ptr<WallClock> WallClock::Mine() {
  const char* path = std::getenv(kVariable);
  if (path == nullptr) return nullptr;
  std::unique_ptr<WallClock> clock(new WallClock(path));
  // A library that cannot be preloaded only causes a warning, so this checks that it has an effect.
  const absl::Time before = absl::Now();
  clock->Jump(absl::Hours(1000));
  const bool jumped = absl::Now() - before > absl::Hours(500);
  clock->Jump(-absl::Hours(1000));
  if (!jumped) throw std::runtime_error("the wall clock's library is not loaded");
  return clock;
}

std::string WallClock::WhyNot() {
#if defined(BFIO_TSAN) || defined(__SANITIZE_ADDRESS__)
  return "the sanitizers want to be loaded first";
#else
  return "";
#endif
}

std::vector<std::string> WallClock::Wrapper() const {
  return {"env", "LD_PRELOAD=" + Library(), absl::StrCat(kVariable, "=", path_)};
}

void WallClock::Jump(absl::Duration by) {
  *ahead_ns_ += absl::ToInt64Nanoseconds(by);
}

std::unique_ptr<WallClock> WallClockOfTest() {
  if (std::unique_ptr<WallClock> mine = WallClock::Mine(); mine != nullptr) return mine;
  if (const std::string why = WallClock::WhyNot(); !why.empty()) {
    [&why] { GTEST_SKIP() << why; }();
  } else {
    EXPECT_TRUE(RunAgain());
  }
  return nullptr;
}

}  // namespace bfio::testing
