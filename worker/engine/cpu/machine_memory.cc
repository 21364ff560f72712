#include "worker/engine/cpu/machine_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace bfio::worker::cpu {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

std::string Read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// "max" or unreadable text means no limit.
int64_t Limit(const std::string& path) {
  int64_t bytes = 0;
  return absl::SimpleAtoi(absl::StripAsciiWhitespace(Read(path)), &bytes) && bytes > 0 ? bytes : kNone;
}

// The smallest limit of the control group at `path` and all its ancestors.
int64_t LeastLimit(const std::string& mount, std::string path, absl::string_view file) {
  int64_t least = Limit(absl::StrCat(mount, "/", file));
  while (path.size() > 1) {
    least = std::min(least, Limit(absl::StrCat(mount, path, "/", file)));
    path.resize(path.rfind('/'));
  }
  return least;
}

}  // namespace

int64_t GroupLimit(absl::string_view membership, const std::string& root) {
  int64_t least = kNone;
  for (const absl::string_view line : absl::StrSplit(membership, '\n')) {
    // Format ID:CONTROLLERS:PATH; for version 2 the controllers are empty.
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || parts[2].empty() || parts[2][0] != '/') continue;
    if (parts[1].empty()) {
      least = std::min(least, LeastLimit(root, parts[2], "memory.max"));
    } else if (absl::c_linear_search(absl::StrSplit(parts[1], ','), "memory")) {
      least = std::min(least, LeastLimit(root + "/memory", parts[2], "memory.limit_in_bytes"));
    }
  }
  return least;
}

int64_t MachineMemory() {
  const int64_t machine = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  return std::min(machine, GroupLimit(Read("/proc/self/cgroup"), "/sys/fs/cgroup"));
}

}  // namespace bfio::worker::cpu
