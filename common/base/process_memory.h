// Memory use of this process. Any thread.
#ifndef BFIO_COMMON_BASE_PROCESS_MEMORY_H_
#define BFIO_COMMON_BASE_PROCESS_MEMORY_H_

#include <cstdint>

namespace bfio {

// Resident memory in bytes; 0 where the system does not report it.
uint64_t ResidentBytes();

}  // namespace bfio

#endif  // BFIO_COMMON_BASE_PROCESS_MEMORY_H_
