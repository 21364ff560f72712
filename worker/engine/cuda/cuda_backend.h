// The GPU backend of a decode engine: runs plans on a device behind DeviceOps. A step is padded to a bucket;
// its inputs are staged in one pinned block and copied at once; the graph recorded for the bucket is
// replayed; the host polls for the end, with a deadline. A step allocates nothing. A backend with a part of
// the weights is one server's part of a chain. Attention gives a row the same bits in any batch
// (attention_plan.h); between buckets a row's logits agree to bf16 rounding, so a replay repeats the tokens
// unless a draw depends on a smaller difference. Threads: as in backend.h. After an error every further Run
// returns the same error.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/engine/cuda/attention_plan.h"
#include "worker/engine/cuda/device_ops.h"
#include "worker/engine/cuda/device_weights.h"
#include "worker/engine/cuda/forward.h"
#include "worker/engine/cuda/step_inputs.h"
#include "worker/engine/decode/decode_engine.h"
#include "worker/engine/decode/part_backend.h"

namespace bfio::worker::gpu {

class CudaBackend final : public PartBackend {
 public:
  // Returns the errors that Create would give for the options, the model's shapes and the device, before the
  // weights, which take minutes, are loaded.
  static absl::Status Check(const DecodeOptions& options, const ModelConfig& config, DeviceOps& ops);

  // KV tokens of the backend that Create would make: options.limits.kv_tokens, or with `fewer` at most as
  // many of them as fit in the free memory, less what is allocated later: graphs, kernels and the barrier's
  // communicator. The weights must be loaded already. RESOURCE_EXHAUSTED, with sizes.
  static absl::StatusOr<int64_t> FitKv(const DecodeOptions& options, const ModelConfig& config,
                                       const DeviceWeights& weights, DeviceOps& ops, bool fewer);

  // `weights`, the whole model or a part of at least one block, are in memory of `ops`, unless they own
  // theirs. INVALID_ARGUMENT: a shape that the kernels do not support; RESOURCE_EXHAUSTED, with sizes: not
  // enough memory; other errors: device_ops.h.
  static absl::StatusOr<std::unique_ptr<CudaBackend>> Create(const DecodeOptions& options,
                                                             const ModelConfig& config,
                                                             std::unique_ptr<DeviceOps> ops,
                                                             DeviceWeights weights, const Progress& progress);
  ~CudaBackend() override;

  absl::string_view name() const override { return "cuda"; }
  const ModelFacts& facts() const override { return facts_; }
  absl::Status Run(const StepPlan& plan, absl::Span<const Draw> draws, absl::Span<Drawn> drawn) override;

  int64_t hidden() const override { return config_.hidden; }
  absl::StatusOr<absl::Span<const float>> RunHead(const StepPlan& plan) override;
  absl::StatusOr<absl::Span<const float>> RunBlocks(const StepPlan& plan,
                                                    absl::Span<const float> hidden) override;
  absl::Status DrawFrom(absl::Span<const float> hidden, absl::Span<const Draw> draws,
                        absl::Span<Drawn> drawn) override;

  // For benchmarks and tests: state of the last step of the whole model.
  const DeviceWeights& weights() const { return weights_; }
  const Forward& forward() const { return *forward_; }
  DeviceOps& ops() { return *ops_; }
  // Seconds that the last step takes on the device when it is run again, and its attention alone. Running it
  // again changes no result: keys and values are overwritten with the same values.
  struct StepTime {
    double step_s = 0;
    double attention_s = 0;
  };
  absl::StatusOr<StepTime> TimeLastStep();

 private:
  // The recorded work of a bucket.
  struct Recorded {
    StepBucket bucket;
    int step = -1;
  };

  CudaBackend(const DecodeOptions& options, const ModelConfig& config, const AttentionGrid& grid,
              std::unique_ptr<DeviceOps> ops, DeviceWeights weights);

  bool whole() const;
  absl::Status Allocate();
  absl::Status Start(const Progress& progress);
  absl::StatusOr<Recorded> RecordBucket(const StepBucket& bucket);
  absl::StatusOr<int> RecordDraws(int32_t draws);
  const Recorded& Choose(const StepPlan& plan) const;
  // Plans the attention, copies the step's inputs to the device and queues the work of its bucket.
  absl::Status Queue(const StepPlan& plan, absl::Span<const Draw> draws);
  absl::Status RunStep(const StepPlan& plan, absl::Span<const Draw> draws, absl::Span<Drawn> drawn);
  absl::Status RunPart(const StepPlan& plan);
  absl::Status RunDraws(absl::Span<const float> hidden, absl::Span<const Draw> draws,
                        absl::Span<Drawn> drawn);
  // Waits for the end of a step and reads its draws.
  absl::Status TakeDrawn(absl::Span<const Draw> draws, absl::Span<Drawn> drawn);
  // Copies hidden rows to the device.
  absl::Status CopyHidden(absl::Span<const float> hidden);

  const DecodeOptions options_;
  const ModelConfig config_;
  // Destroyed after ops_, whose destructor waits for queued work that uses them.
  const DeviceWeights weights_;
  const std::unique_ptr<DeviceOps> ops_;
  ModelFacts facts_;
  const AttentionGrid grid_;
  const AttentionLimits limits_;
  const AttentionShape shape_;
  const AttentionSizes sizes_;
  AttentionPlan attention_;
  // Buckets of steps without prompts, in which every row has a draw; and of all steps.
  const RowBuckets draw_buckets_, row_buckets_;
  const StepLayout layout_;
  std::unique_ptr<Forward> forward_;
  // Staged inputs in pinned memory, and on the device.
  void* staged_ = nullptr;
  void* inputs_ = nullptr;
  DrawResult* results_ = nullptr;
  TopResult* tops_ = nullptr;
  // [max rows, hidden] Pinned; only for a part of a model.
  float* hidden_ = nullptr;
  // By index of draw_buckets_, and of row_buckets_.
  std::vector<Recorded> decodes_, prompts_;
  // By index of draw_buckets_; only for the head of a chain.
  std::vector<int> draws_;
  const Recorded* last_ = nullptr;
  absl::Status broken_;
};

}  // namespace bfio::worker::gpu
