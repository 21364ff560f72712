// The GPU's half of a decode engine.
//
// Purpose: runs plans on a device behind DeviceOps: pads a step to a bucket, stages its inputs in one pinned
// block, brings them over with one copy, replays the work that was recorded for the bucket, and waits by
// polling with a deadline. Everything is allocated, chosen and recorded when it is made; a step allocates
// nothing. A backend with a part of the weights is a server's part of a chain: its steps begin or end with
// hidden rows, which go through pinned memory of their own.
//
// Where the ranks share the MLP out (--mlp=tp) nothing is recorded, as every layer meets the peers: kernels
// are launched one by one, and memory for the rows of all ranks is allocated, and kernels for them selected,
// when a group forms (shared_mlp.h).
//
// Attention gives a row the same bits in any company (attention_plan.h); matrix products are chosen by the
// bucket, so a row's logits agree to bf16's rounding between buckets, not to the last bit. A replay repeats
// the tokens as long as no draw is that close.
//
// Threads: as backend.h says. After an error every further Run gives the same error.
#ifndef BFIO_WORKER_ENGINE_CUDA_CUDA_BACKEND_H_
#define BFIO_WORKER_ENGINE_CUDA_CUDA_BACKEND_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/engine/cuda/attention_plan.h"
#include "worker/engine/cuda/device_ops.h"
#include "worker/engine/cuda/device_weights.h"
#include "worker/engine/cuda/forward.h"
#include "worker/engine/cuda/row_buckets.h"
#include "worker/engine/cuda/shared_mlp.h"
#include "worker/engine/cuda/step_inputs.h"
#include "worker/engine/decode/decode_engine.h"
#include "worker/engine/decode/part_backend.h"

namespace bfio::worker::gpu {

class CudaBackend final : public PartBackend {
 public:
  // What Create would say of the options, the model's shapes and the device, before minutes go by on weights.
  static absl::Status Check(const DecodeOptions& options, const ModelConfig& config, DeviceOps& ops);

  // KV tokens of the backend that Create would make: options.limits.kv_tokens, or with `fewer` as many of
  // them as fit into what is free, less what comes later: graphs, kernels, the barrier's communicator and,
  // with
  // --mlp=tp, the rows of all ranks. The weights are in their place. RESOURCE_EXHAUSTED, with sizes.
  static absl::StatusOr<int64_t> FitKv(const DecodeOptions& options, const ModelConfig& config,
                                       const DeviceWeights& weights, DeviceOps& ops, bool fewer);

  // The weights, all of the model or a part of at least a block, are in memory of `ops`, unless they keep
  // their own. INVALID_ARGUMENT: a shape the kernels do not have, or a part that is to share its MLP out;
  // RESOURCE_EXHAUSTED: no memory, with sizes; other errors: device_ops.h.
  static absl::StatusOr<std::unique_ptr<CudaBackend>> Create(const DecodeOptions& options,
                                                             const ModelConfig& config,
                                                             std::unique_ptr<DeviceOps> ops,
                                                             DeviceWeights weights, const Progress& progress);
  ~CudaBackend() override;

  absl::string_view name() const override { return "cuda"; }
  const ModelFacts& facts() const override { return facts_; }
  // FAILED_PRECONDITION where the MLP is shared out.
  absl::Status Run(const StepPlan& plan, absl::Span<const Draw> draws, absl::Span<Drawn> drawn) override;
  std::optional<uint64_t> signature() const override { return signature_; }
  absl::Status EnterGroup(const StepPeers& peers) override;
  // An error of the peers leaves all as it was but keys and values of the plan's own rows, which may be
  // anything then; an error of the device is permanent.
  absl::Status RunTogether(const StepPlan& plan, absl::Span<const Draw> draws, absl::Span<Drawn> drawn,
                           StepPeers& peers) override;

  int64_t hidden() const override { return config_.hidden; }
  absl::StatusOr<absl::Span<const float>> RunHead(const StepPlan& plan) override;
  absl::StatusOr<absl::Span<const float>> RunBlocks(const StepPlan& plan,
                                                    absl::Span<const float> hidden) override;
  absl::Status DrawFrom(absl::Span<const float> hidden, absl::Span<const Draw> draws,
                        absl::Span<Drawn> drawn) override;

  // For benchmarks and tests, of the last step of the whole model; without a shared MLP.
  const DeviceWeights& weights() const { return weights_; }
  const Forward& forward() const { return *forward_; }
  DeviceOps& ops() { return *ops_; }
  // Seconds that the last step takes on the device when it is run again, and its attention alone. It changes
  // no result: keys and values are written where they are.
  struct StepTime {
    double step_s = 0;
    double attention_s = 0;
  };
  absl::StatusOr<StepTime> TimeLastStep();

 private:
  // A bucket's work.
  struct Recorded {
    StepBucket bucket;
    int step = -1;
    int attention = -1;
  };

  CudaBackend(const DecodeOptions& options, const ModelConfig& config, const AttentionGrid& grid,
              std::unique_ptr<DeviceOps> ops, DeviceWeights weights);

  bool whole() const;
  absl::Status Allocate();
  absl::Status Start(const Progress& progress);
  absl::StatusOr<Recorded> RecordBucket(const StepBucket& bucket);
  // Launches each kernel of a rank's own half once, on no rows: what CUDA loads then must not be loaded while
  // a collective waits for its peers.
  absl::Status LoadKernels(const StepBucket& bucket);
  absl::StatusOr<int> RecordDraws(int32_t draws);
  const Recorded& Choose(const StepPlan& plan) const;
  // Plans the attention, brings the step's inputs over and chooses its bucket.
  absl::StatusOr<const Recorded*> Stage(const StepPlan& plan, absl::Span<const Draw> draws);
  // Queues a step up to its end.
  absl::Status Queue(const StepPlan& plan, absl::Span<const Draw> draws);
  absl::Status RunStep(const StepPlan& plan, absl::Span<const Draw> draws, absl::Span<Drawn> drawn);
  absl::Status RunShared(const StepPlan& plan, absl::Span<const Draw> draws, absl::Span<Drawn> drawn,
                         StepPeers& peers);
  absl::Status RunPart(const StepPlan& plan);
  absl::Status RunDraws(absl::Span<const float> hidden, absl::Span<const Draw> draws,
                        absl::Span<Drawn> drawn);
  // A shared step's layers.
  absl::Status RunLayers(const StepPlan& plan, const StepBucket& bucket, StepPeers& peers);
  // Until what is queued of a shared step is done, with collectives on the device.
  absl::Status AwaitShared(StepPeers& peers);
  // The end of a step that draws. `peers`: of a shared step.
  absl::Status TakeDrawn(absl::Span<Drawn> drawn, StepPeers* peers = nullptr);
  // Hidden rows to the device.
  absl::Status CopyHidden(absl::Span<const float> hidden);

  const DecodeOptions options_;
  const ModelConfig config_;
  // Outlive what is queued: the ops' end waits for that.
  const DeviceWeights weights_;
  const std::unique_ptr<DeviceOps> ops_;
  ModelFacts facts_;
  const AttentionGrid grid_;
  const AttentionLimits limits_;
  const AttentionShape shape_;
  const AttentionSizes sizes_;
  AttentionPlan attention_;
  // Of steps without prompts, which have a draw for each row; and of all rows.
  const RowBuckets draw_buckets_, row_buckets_;
  const StepLayout layout_;
  std::unique_ptr<Forward> forward_;
  // With --mlp=tp.
  std::unique_ptr<SharedMlp> mlp_;
  std::optional<uint64_t> signature_;
  // Pinned, and on the device.
  void* staged_ = nullptr;
  void* inputs_ = nullptr;
  DrawResult* results_ = nullptr;
  // [max rows, hidden] Pinned; of a part.
  float* hidden_ = nullptr;
  // By draw_buckets_ and by row_buckets_.
  std::vector<Recorded> decodes_, prompts_;
  // By draw_buckets_; of a head.
  std::vector<int> draws_;
  const Recorded* last_ = nullptr;
  absl::Status broken_;
};

}  // namespace bfio::worker::gpu

#endif  // BFIO_WORKER_ENGINE_CUDA_CUDA_BACKEND_H_
