#include "tests/testing/process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "tests/testing/temp_folder.h"

namespace bfio::testing {
namespace {

// Programs are in build/bin/, tests and their own programs in build/tests/.
std::string ProgramPath(const std::string& program) {
  const std::filesystem::path tests = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::filesystem::path own = tests / program;
  return (std::filesystem::exists(own) ? own : tests.parent_path() / "bin" / program).string();
}

void Redirect(const std::string& path, int fd) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dup2(file, fd);
  close(file);
}

}  // namespace

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string AddressAfter(const std::string& before, const std::string& text) {
  const size_t at = text.find(before);
  if (at == std::string::npos) throw std::runtime_error(absl::StrCat("no '", before, "' in: ", text));
  const size_t start = at + before.size();
  return text.substr(start, text.find_first_of(",/ \n", start) - start);
}

size_t CountOf(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

void MakeCerts(const std::string& folder, const std::string& flags) {
  const std::string command =
      absl::StrCat("deploy/make_certs --out=", folder, " ", flags, " >", folder, ".log 2>&1");
  if (system(command.c_str()) != 0) throw std::runtime_error(command + ": " + ReadFile(folder + ".log"));
}

std::vector<int64_t> StepLogColumn(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  const std::vector<std::string> names = absl::StrSplit(line, ',');
  const auto at = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  std::vector<int64_t> values;
  while (std::getline(file, line)) {
    const std::vector<std::string> cells = absl::StrSplit(line, ',');
    int64_t value = 0;
    if (at < cells.size() && absl::SimpleAtoi(cells[at], &value)) values.push_back(value);
  }
  return values;
}

std::string TestDirectory() {
  static const TempFolder folder;
  return folder.path();
}

Process::Process(const std::string& program, const std::vector<std::string>& args,
                 const std::vector<std::string>& wrapper) {
  static std::atomic<int> counter{0};
  const std::string base =
      absl::StrCat(TestDirectory(), "/", counter++, "-", std::filesystem::path(program).filename().string());
  out_path_ = base + ".out";
  err_path_ = base + ".err";
  const std::string path = ProgramPath(program);
  std::vector<std::string> words = wrapper;
  words.push_back(path);
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // when a test is killed, its programs are too
  setpgid(0, 0);
  Redirect(out_path_, 1);
  Redirect(err_path_, 2);
  execvp(argv[0], argv.data());
  std::fprintf(stderr, "cannot run %s\n", argv[0]);
  _exit(127);
}

Process::Process(Process&& other) noexcept
    : pid_(other.pid_),
      code_(other.code_),
      out_path_(std::move(other.out_path_)),
      err_path_(std::move(other.err_path_)) {
  other.pid_ = -1;
}

Process::~Process() {
  if (pid_ > 0 && !code_) {
    kill(pid_, SIGKILL);
    Wait(absl::Seconds(10));
  }
}

void Process::Signal(int number) {
  if (pid_ > 0 && !code_) kill(pid_, number);
}

std::optional<int> Process::Wait(absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  while (!code_) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    } else if (MonotonicNow() >= deadline) {
      break;
    } else {
      absl::SleepFor(absl::Milliseconds(5));
    }
  }
  return code_;
}

std::string Process::Stdout() const {
  return ReadFile(out_path_);
}
std::string Process::Stderr() const {
  return ReadFile(err_path_);
}

bool Process::WaitForOutput(const std::string& text, absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  for (;;) {
    const bool ended = Wait(absl::ZeroDuration()).has_value();
    if (Stdout().find(text) != std::string::npos) return true;
    if (ended || MonotonicNow() >= deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
}

RunResult RunProgram(const std::string& program, const std::vector<std::string>& args,
                     absl::Duration timeout) {
  Process process(program, args);
  RunResult result;
  const std::optional<int> code = process.Wait(timeout);
  if (code) {
    result.code = *code;
  } else {
    process.Signal(SIGKILL);
    process.Wait(absl::Seconds(10));
  }
  result.out = process.Stdout();
  result.err = process.Stderr();
  return result;
}

}  // namespace bfio::testing
