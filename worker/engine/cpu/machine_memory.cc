#include "worker/engine/cpu/machine_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

namespace bfio::worker::cpu {

int64_t ParseMemoryMax(absl::string_view text) {
  int64_t bytes = 0;
  if (absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &bytes) && bytes > 0) return bytes;
  return std::numeric_limits<int64_t>::max();
}

int64_t MachineMemory() {
  const int64_t machine = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  // A container sees its own group as the root.
  std::ifstream file("/sys/fs/cgroup/memory.max");
  std::string line;
  std::getline(file, line);
  return std::min(machine, ParseMemoryMax(line));
}

}  // namespace bfio::worker::cpu
