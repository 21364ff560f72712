// Memory use of this process. Any thread.
#pragma once

#include <cstdint>

namespace bfio {

// Resident memory in bytes; 0 where the system does not report it.
uint64_t ResidentBytes();

}  // namespace bfio
