// One server's part of one chain: receives micro-batches from its predecessor, runs its blocks, and sends the
// results on. Several micro-batches of a chain are in flight at the same time, one of them computed here. The
// queue of received micro-batches is bounded by kMaxInFlight. After the first error (an invalid micro-batch,
// a lost neighbour) the stage is permanently broken and reports that once. The stream detects a neighbour
// that stops sending without closing it. Threads: one of its own, besides those of its part; Take and OnLost
// from any thread. No lock is held during calls to other objects.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "chains/pipeline/micro_batch.h"
#include "common/base/mutex.h"
#include "worker/engine/decode/part_backend.h"

namespace bfio::worker {

// The neighbours of a server in a chain, as interfaces: where to send, and where to receive. Keeps stages and
// heads independent of gRPC; chains/worker implements the streams.

// Sends to the next server of the chain, or from the last one back to the head.
class Outlet {
 public:
  virtual ~Outlet() = default;
  // Never blocks; accepted micro-batches are sent in order. RESOURCE_EXHAUSTED when kMaxInFlight are waiting
  // already because the neighbour does not read. Threads: one.
  virtual absl::Status Send(MicroBatch batch) = 0;
};

// Receives the micro-batches of one chain. Threads: any, one at a time.
class Inlet {
 public:
  virtual ~Inlet() = default;
  // Never blocks. An error is returned to the sender, and ends the chain.
  virtual absl::Status Take(MicroBatch batch) = 0;
  // The stream has ended or was invalid: nothing more will come.
  virtual void OnLost(const absl::Status& why) = 0;
};

inline constexpr int32_t kTrialRows = 33;

struct BlockTime {
  // Seconds of a step of one row, and of every further row.
  double step_s = 0;
  double row_s = 0;
};

// Measures the time of a block on this server, on block 0 of the model: the composer places blocks by the
// speed of the servers. Steps of one row and of kTrialRows rows are repeated for `budget`, and the shortest
// time of each is taken: other load on the machine makes a step longer, never shorter. The block's weights
// are loaded for it and released. Errors: those of `source`. `options`: as for serving, without the limits.
// Threads: uses the engine's own; call it before serving.
absl::StatusOr<BlockTime> MeasureBlock(PartSource& source, DecodeOptions options, absl::Duration budget);

class Stage final : public Inlet {
 public:
  // `last`: results go back to the head. `on_broken` is called at most once, from any thread including the
  // stage's own, so it must not destroy the stage.
  Stage(std::unique_ptr<PartBackend> part, const BatchBounds& bounds, bool last,
        std::unique_ptr<Outlet> outlet, std::function<void(const absl::Status&)> on_broken);
  ~Stage() override;

  absl::Status Take(MicroBatch batch) override;
  void OnLost(const absl::Status& why) override { Break(why); }

 private:
  void Run();
  // False: stopped.
  bool Next(MicroBatch& batch);
  absl::Status Compute(MicroBatch batch);
  void Break(const absl::Status& why);

  const std::unique_ptr<PartBackend> part_;
  const BatchBounds bounds_;
  const bool last_;
  const std::unique_ptr<Outlet> outlet_;
  const std::function<void(const absl::Status&)> on_broken_;

  Mutex mutex_;
  std::deque<MicroBatch> waiting_ ABSL_GUARDED_BY(mutex_);
  // Number of the last micro-batch received.
  uint64_t number_ ABSL_GUARDED_BY(mutex_) = 0;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace bfio::worker
