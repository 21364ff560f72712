#include "common/base/process_memory.h"

#include <unistd.h>

#include <fstream>

namespace bfio {

uint64_t ResidentBytes() {
  // In pages: the address space, then the resident size (proc(5)).
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  if (!(statm >> size >> resident)) return 0;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace bfio
