// How long a block takes on this server, measured on block 0 of the model before anything is served.
//
// Purpose: the composer places blocks by the speed of servers, so each says what its own is. Steps of one
// row and of kTrialRows are run over and over for a fraction of a second, the least time of each counts: what
// else the machine does makes a step longer, never shorter. The block's weights are read for it, and given
// back. Threads: the engine's own meanwhile; call it before serving.
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

// Errors: the source's. `options`: of what will be served; less the limits.
absl::StatusOr<BlockTime> MeasureBlock(PartSource& source, DecodeOptions options, absl::Duration budget);

}  // namespace bfio::worker

#endif  // BFIO_CHAINS_PIPELINE_BLOCK_TRIAL_H_
