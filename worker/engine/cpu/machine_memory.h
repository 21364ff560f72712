// How much memory this process may use.
//
// Purpose: a KV cache takes memory as it is used, so one that is too large does not fail when it is made but
// hours later, when the kernel kills the process. Memory of other processes is not taken into account.
// Threads: any.
#ifndef BFIO_WORKER_ENGINE_CPU_MACHINE_MEMORY_H_
#define BFIO_WORKER_ENGINE_CPU_MACHINE_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace bfio::worker::cpu {

// Bytes of the machine, or of the smallest control group limit that applies to this process (a container's, a
// systemd unit's), whichever is less.
int64_t MachineMemory();

// The smallest memory limit of control groups of version 1 or 2, in bytes; the largest int64_t where nothing
// is limited. `membership`: the text of /proc/self/cgroup; `root`: where control groups are mounted. For a
// group that a container cannot see, its visible ancestors are used.
int64_t GroupLimit(absl::string_view membership, const std::string& root);

}  // namespace bfio::worker::cpu

#endif  // BFIO_WORKER_ENGINE_CPU_MACHINE_MEMORY_H_
