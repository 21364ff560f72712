// The rotary embedding in a config.json: `rope_theta` and `rope_scaling`, or the newer `rope_parameters`.
//
// Threads: pure functions.
#ifndef BFIO_WORKER_ENGINE_MODEL_ROPE_CONFIG_H_
#define BFIO_WORKER_ENGINE_MODEL_ROPE_CONFIG_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "worker/engine/model/model_config.h"

namespace bfio::worker {

// Reads the fields as transformers does. The first error goes to `status`, unless it has one; its message
// begins with `where`.
RopeConfig ReadRopeConfig(const nlohmann::json& config, int64_t max_positions, absl::string_view where,
                          absl::Status* status);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_MODEL_ROPE_CONFIG_H_
