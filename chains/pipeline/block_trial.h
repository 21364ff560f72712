// Measures the time of a block on this server, on block 0 of the model, before anything is served.
//
// Purpose: the composer places blocks by the speed of the servers, so each reports its own. Steps of one row
// and of kTrialRows rows are repeated for a fraction of a second, and the shortest time of each is taken:
// other load on the machine makes a step longer, never shorter. The block's weights are loaded for it and
// released. Threads: uses the engine's own; call it before serving.
#ifndef BFIO_CHAINS_PIPELINE_BLOCK_TRIAL_H_
#define BFIO_CHAINS_PIPELINE_BLOCK_TRIAL_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/engine/decode/part_backend.h"

namespace bfio::worker {

inline constexpr int32_t kTrialRows = 33;

struct BlockTime {
  // Seconds of a step of one row, and of every further row.
  double step_s = 0;
  double row_s = 0;
};

// Errors: those of `source`. `options`: as for serving, without the limits.
absl::StatusOr<BlockTime> MeasureBlock(PartSource& source, DecodeOptions options, absl::Duration budget);

}  // namespace bfio::worker

#endif  // BFIO_CHAINS_PIPELINE_BLOCK_TRIAL_H_
