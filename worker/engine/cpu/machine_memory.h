// How much memory this process may have.
//
// Purpose: a KV cache takes memory as it is used, so one that is too large is not noticed when it is made but
// hours later, when the kernel ends the process. Threads: any.
#ifndef BFIO_WORKER_ENGINE_CPU_MACHINE_MEMORY_H_
#define BFIO_WORKER_ENGINE_CPU_MACHINE_MEMORY_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace bfio::worker::cpu {

// Bytes: the machine's, or less where a container's limit (control groups, version 2) is less.
int64_t MachineMemory();

// What a control group's memory.max says; the largest number where it says "max", or nothing one can read.
int64_t ParseMemoryMax(absl::string_view text);

}  // namespace bfio::worker::cpu

#endif  // BFIO_WORKER_ENGINE_CPU_MACHINE_MEMORY_H_
