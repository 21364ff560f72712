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

// As transformers reads them; `status` gets the first fault, if it has none. `where` opens its message.
RopeConfig ReadRopeConfig(const nlohmann::json& config, int64_t max_positions, absl::string_view where,
                          absl::Status* status);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_MODEL_ROPE_CONFIG_H_
