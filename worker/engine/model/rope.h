// Rotary position embedding: the rotation frequency of each pair of dimensions. The inverse frequencies of
// the three supported kinds. Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "worker/engine/model/model_config.h"

namespace bfio::worker {

// Reads the fields as transformers does. The first error goes to `status`, unless it has one; its message
// begins with `where`.
RopeConfig ReadRopeConfig(const nlohmann::json& config, int64_t max_positions, absl::string_view where,
                          absl::Status* status);

// head_dim / 2 frequencies in radians per position, computed in double and rounded once. Pair i is the
// dimensions i and i + head_dim / 2 of a head (halves, not neighbours). At position p, with a = p * f[i],
//   x[i]' = x[i] cos a - x[i + head_dim/2] sin a,  x[i + head_dim/2]' = x[i + head_dim/2] cos a + x[i] sin a.
// REQUIRES: head_dim is even and positive.
std::vector<float> InverseFrequencies(const RopeConfig& rope, int64_t head_dim);

}  // namespace bfio::worker
