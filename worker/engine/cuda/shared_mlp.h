// One rank's part of every layer's MLP, for the rows of all ranks (--mlp=tp).
//
// Purpose: all ranks' rows are gathered, padded to the step's largest batch; each rank computes its part of
// gate, up and down for all of them; the sums are scattered back to the ranks that own the rows. A part is a
// view of the weights: nothing is uploaded when the group changes. Where the barrier has collectives on the
// device, activations stay there: rows are bf16, and a rank contributes one sum over all its columns.
// Otherwise they go through pinned host memory: rows as fp32 (an exact copy of bf16), and one sum per node of
// the tree (worker/barrier/summation_tree.h).
//
// The sums of 1, 2 and 4 ranks nevertheless differ in their last bits: a node's columns are one product,
// summed at once, so the node's borders affect the rounding. In groups of the same size a row's sum depends
// on the row alone, as far as the products do (cuBLASLt chooses them by the rows of all ranks).
//
// Enter allocates memory and chooses products for every batch that the group may have; a step does neither.
// With R = world_size x largest batch, padded (row_buckets.h), and a rank's share w of the intermediate
// width, it takes at most about R x (2 x hidden + 6 x w + 4 x nodes x hidden) bytes of device memory.
//
// Threads: as DeviceOps. Errors: the device's and the peers', which peers.status() distinguishes. With
// collectives on the device an error of the peers may be seen only after everything is queued
// (StepPeers::CheckDevice); work queued behind the failed collective then runs on undefined numbers.
#ifndef BFIO_WORKER_ENGINE_CUDA_SHARED_MLP_H_
#define BFIO_WORKER_ENGINE_CUDA_SHARED_MLP_H_

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "worker/barrier/step_peers.h"
#include "worker/engine/cuda/device_ops.h"
#include "worker/engine/cuda/device_weights.h"
#include "worker/engine/cuda/growing_memory.h"
#include "worker/engine/cuda/mlp_part.h"
#include "worker/engine/model/model_config.h"

namespace bfio::worker::gpu {

class SharedMlp {
 public:
  // Upper bound of its device memory in bytes, in groups of up to 8 ranks (larger groups do not split
  // further), if no rank has a batch of more than `rows` rows.
  static int64_t MostBytes(const ModelConfig& config, int32_t rows);

  // The arguments must outlive this. REQUIRES: the weights have all layers.
  SharedMlp(const ModelConfig& config, const DeviceWeights& weights, DeviceOps& ops);

  // Prepares for the steps of a group in which no rank has more than peers.rows() rows. Waits for the device,
  // not for peers. Does nothing if already prepared for the same. RESOURCE_EXHAUSTED: not enough memory; it
  // then holds none, and may enter another group. REQUIRES: 0 < peers.rows().
  absl::Status Enter(const StepPeers& peers);
  // Begins a step in which this rank has `rows` rows. INTERNAL: Enter was called for another rank or group,
  // or for fewer rows. REQUIRES: 0 <= rows <= peers.rows(), 0 < peers.rows(); no queued work of the previous
  // step is still needed.
  absl::Status Begin(int32_t rows, const StepPeers& peers);

  // [rows, hidden] In device memory: the layer's normalised rows must be here before Run.
  Bf16* input() const { return input_.as<Bf16>(); }
  // [rows, hidden] In device memory: the MLP's output without the down projection's bias, valid once the work
  // queued by Run is done.
  const float* output() const { return output_.as<float>(); }

  // Waits for the peers and for the device; with collectives on the device, for neither.
  absl::Status Run(int64_t layer, StepPeers& peers);

 private:
  // Weights of the down projection, by layer, in the node's columns.
  struct Node {
    MlpColumns columns;
    std::vector<const Bf16*> weights;
  };

  // Bytes of the device arrays, for given numbers of rows per rank and in total.
  struct Sizes {
    int64_t input = 0, gathered = 0, gates = 0, activated = 0, sums = 0, output = 0;
  };
  static Sizes SizesOf(int64_t each, int64_t all, int64_t hidden, const MlpPart& part);

  void SetRows(const StepPeers& peers, int64_t rows);
  void Cut(const StepPeers& peers);
  // Frees all of the memory if it fails.
  absl::Status Reserve();
  absl::Status ReserveAll();
  // Chooses products for the padded numbers of rows.
  absl::Status Prepare();
  GemmShape WideShape() const;
  GemmShape NarrowShape(const Node& node) const;
  absl::Status RunOnDevice(int64_t layer, StepPeers& peers);
  absl::Status Gather(StepPeers& peers);
  absl::Status Compute(int64_t layer);
  absl::Status Activate(int64_t layer);
  absl::Status Scatter(StepPeers& peers);
  // [all rows, hidden] Node i's sums. The product also writes the padding rows, which overlap node i + 1's
  // sums; those are written afterwards.
  float* sums(size_t node) const {
    return sums_.as<float>() + static_cast<int64_t>(node) * all_rows_ * hidden_;
  }

  const ModelConfig& config_;
  const DeviceWeights& weights_;
  DeviceOps& ops_;
  const int64_t hidden_;

  // The group that Enter was last called with: rank, world size, and whether collectives are on the device;
  // and the upper bound of its batches.
  std::optional<std::tuple<int32_t, int32_t, bool>> place_;
  int64_t most_rows_ = 0;
  bool on_device_ = false;
  MlpPart part_;
  // By layer, within the part's columns.
  std::vector<const Bf16*> gates_weights_, ups_weights_;
  std::vector<Node> nodes_;
  // In the current step: this rank's rows, padded rows per rank, rows of all ranks, and these with the
  // products' padding.
  int64_t rows_ = 0, each_ = 0, all_rows_ = 0;
  int32_t padded_rows_ = 0;

  // bf16: [each, hidden], [padded, hidden], [padded, 2 x width], [padded, width]
  GrowingMemory input_, gathered_, gates_, activated_;
  // fp32: [nodes, all rows, hidden] and the padding, [each, hidden]
  GrowingMemory sums_, output_;
  // Pinned: [all rows, hidden] in bf16, [nodes, all rows, hidden], [each, hidden]
  GrowingMemory host_rows_, host_sums_, host_sum_;
  // [each, hidden], [all rows, hidden]
  std::vector<float> mine_, all_;
};

}  // namespace bfio::worker::gpu

#endif  // BFIO_WORKER_ENGINE_CUDA_SHARED_MLP_H_
