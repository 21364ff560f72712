// The ports on which a process listens, according to the kernel.
#ifndef BFIO_TESTS_TESTING_LISTENING_PORTS_H_
#define BFIO_TESTS_TESTING_LISTENING_PORTS_H_

#include <sys/types.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace bfio::testing {

// TCP ports over IPv4, in the process's own network namespace. Empty when the process is gone.
inline std::vector<int> ListeningPorts(pid_t pid) {
  std::set<std::string> inodes;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), error)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (absl::StartsWith(target, "socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::vector<int> ports;
  std::ifstream table(absl::StrCat("/proc/", pid, "/net/tcp"));
  std::string line;
  std::getline(table, line);  // headings
  while (std::getline(table, line)) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    constexpr char kListen[] = "0A";
    if (fields.size() < 10 || fields[3] != kListen || inodes.count(fields[9]) == 0) continue;
    ports.push_back(static_cast<int>(std::stoul(fields[1].substr(fields[1].find(':') + 1), nullptr, 16)));
  }
  return ports;
}

}  // namespace bfio::testing

#endif  // BFIO_TESTS_TESTING_LISTENING_PORTS_H_
