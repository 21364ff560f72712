// Memory that a part of a model takes in the CPU engine (model_part.h), with weights as the engine stores
// them, converted or mapped. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "worker/engine/cpu/kv_cache.h"
#include "worker/engine/cpu/weights.h"
#include "worker/engine/decode/model_part.h"

namespace bfio::worker::cpu {

// How much memory this process may use. A KV cache takes memory as it is used, so one that is too large would
// fail hours later, when the kernel kills the process. Memory of other processes is not taken into account.

// Bytes of the machine, or of the smallest control group limit that applies to this process (a container's, a
// systemd unit's), whichever is less.
int64_t MachineMemory();

// The smallest memory limit of control groups of version 1 or 2, in bytes; the largest int64_t where nothing
// is limited. `membership`: the text of /proc/self/cgroup; `root`: where control groups are mounted. For a
// group that a container cannot see, its visible ancestors are used.
int64_t GroupLimit(absl::string_view membership, const std::string& root);

ModelBytes BytesOf(const Model& model, Storage weights);

// Shape of a KV cache for `blocks` blocks and one page table.
KvShape PartShape(const ModelConfig& config, int64_t blocks, int32_t page_tokens, int64_t pages);

}  // namespace bfio::worker::cpu
