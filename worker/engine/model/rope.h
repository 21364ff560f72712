// Rotary position embedding: the rotation frequency of each pair of dimensions.
//
// Purpose: the inverse frequencies of the three supported kinds. Threads: pure functions.
#ifndef BFIO_WORKER_ENGINE_MODEL_ROPE_H_
#define BFIO_WORKER_ENGINE_MODEL_ROPE_H_

#include <cstdint>
#include <vector>

#include "worker/engine/model/model_config.h"

namespace bfio::worker {

// head_dim / 2 frequencies in radians per position, computed in double and rounded once. Pair i is the
// dimensions i and i + head_dim / 2 of a head (halves, not neighbours). At position p, with a = p * f[i],
//   x[i]' = x[i] cos a - x[i + head_dim/2] sin a,  x[i + head_dim/2]' = x[i + head_dim/2] cos a + x[i] sin a.
// REQUIRES: head_dim is even and positive.
std::vector<float> InverseFrequencies(const RopeConfig& rope, int64_t head_dim);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_MODEL_ROPE_H_
