// How much memory this process may have.
//
// Purpose: a KV cache takes memory as it is used, so one that is too large is not noticed when it is made but
// hours later, when the kernel ends the process. What other processes take is not known here. Threads: any.
#ifndef BFIO_WORKER_ENGINE_CPU_MACHINE_MEMORY_H_
#define BFIO_WORKER_ENGINE_CPU_MACHINE_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace bfio::worker::cpu {

// Bytes: the machine's, or less where a control group that this process is in allows less (a container's, a
// systemd unit's).
int64_t MachineMemory();

// The least that control groups allow, of version 1 or 2; the largest number where none limits anything.
// `membership`: the text of /proc/self/cgroup; `root`: where groups are mounted. Groups that a container does
// not see count by those above them.
int64_t GroupLimit(absl::string_view membership, const std::string& root);

}  // namespace bfio::worker::cpu

#endif  // BFIO_WORKER_ENGINE_CPU_MACHINE_MEMORY_H_
