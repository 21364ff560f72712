// One server's part of one chain: takes micro-batches from its predecessor, runs its blocks, passes them on.
//
// Purpose: several micro-batches of a chain are under way at a time, one of them computed here. What has come
// and is not computed yet is bounded by kMaxInFlight. After the first error (a micro-batch that does not fit,
// a neighbour that is lost) the stage is broken for good and says so once. A neighbour that falls silent
// without closing its stream is the stream's to notice. Threads: one of its own, besides those of its
// part; Take and OnLost from any thread. No locks are held in calls outwards.
#ifndef BFIO_CHAINS_PIPELINE_STAGE_H_
#define BFIO_CHAINS_PIPELINE_STAGE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "chains/pipeline/neighbours.h"
#include "common/base/mutex.h"
#include "worker/engine/decode/part_backend.h"

namespace bfio::worker {

class Stage final : public Inlet {
 public:
  // `last`: its results go back to the head. `on_broken` is called once at most, from any of the threads, the
  // stage's own too: it must not destroy the stage.
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
  // Of the micro-batch that came last.
  uint64_t number_ ABSL_GUARDED_BY(mutex_) = 0;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace bfio::worker

#endif  // BFIO_CHAINS_PIPELINE_STAGE_H_
