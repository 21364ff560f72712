// A rank's part of every layer's MLP, of the rows of all ranks (--mlp=tp).
//
// Purpose: all ranks' rows are gathered, padded to the step's largest batch; each rank computes its part of
// gate, up and down for all of them; the sums are scattered back to whom the rows belong. A part is a view of
// the weights: nothing is uploaded when the group changes. Where the barrier has collectives on the device,
// activations stay there: rows are bf16, and a rank brings one sum of all its columns. Elsewhere they go
// through pinned host memory: rows as fp32, which bf16 is exactly, and a sum per node of the tree
// (worker/barrier/summation_tree.h).
//
// The sums of 1, 2 and 4 ranks differ in their last bits nevertheless: a node's columns are one product,
// which adds them up in one go, so where a node ends shows in the rounding. In a group of one size a row's
// sum depends on the row alone as far as the products do (cuBLASLt chooses them by the rows of all ranks).
//
// Enter allocates and chooses products for every batch that the group may have; a step does neither. What it
// takes at most, with R = world_size x largest batch, padded (row_buckets.h), and a rank's share w of the
// intermediate width: about R x (2 x hidden + 6 x w + 4 x nodes x hidden) bytes of device memory.
//
// Threads: as DeviceOps. Errors: the device's, and the peers', which peers.status() distinguishes. With
// collectives on the device an error of the peers may show when all is queued (StepPeers::CheckDevice), and
// what was queued behind the failed collective runs on its wrong numbers.
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
  // Device memory that it comes to take in a group of up to 8 ranks (more gain nothing), in bytes, where no
  // rank has a batch of more than `rows`.
  static int64_t MostBytes(const ModelConfig& config, int32_t rows);

  // The arguments outlive this. REQUIRES: the weights have all layers.
  SharedMlp(const ModelConfig& config, const DeviceWeights& weights, DeviceOps& ops);

  // Makes ready for the steps of a group, in which no rank has more than peers.rows() rows; waits for the
  // device and for no peer. Nothing is done where that has been made ready. REQUIRES: 0 < peers.rows().
  absl::Status Enter(const StepPeers& peers);
  // Begins a step in which this rank has `rows` rows. INTERNAL: Enter was for another place, or fewer rows.
  // REQUIRES: 0 <= rows <= peers.rows(), 0 < peers.rows(); nothing is queued that is still needed of the step
  // before.
  absl::Status Begin(int32_t rows, const StepPeers& peers);

  // [rows, hidden] In device memory: where the layer's normed rows belong before Run.
  Bf16* input() const { return input_.as<Bf16>(); }
  // [rows, hidden] In device memory: the MLP's output less the down projection's bias, once what Run has
  // queued is done.
  const float* output() const { return output_.as<float>(); }

  // Waits for the peers, and for the device; with collectives on the device for neither.
  absl::Status Run(int64_t layer, StepPeers& peers);

 private:
  // Of the down projection, by layer, in the node's columns.
  struct Node {
    MlpColumns columns;
    std::vector<const Bf16*> weights;
  };

  // Bytes of the arrays on the device, of as many rows of each rank and of all.
  struct Sizes {
    int64_t input = 0, gathered = 0, gates = 0, activated = 0, sums = 0, output = 0;
  };
  static Sizes SizesOf(int64_t each, int64_t all, int64_t hidden, const MlpPart& part);

  void SetRows(const StepPeers& peers, int64_t rows);
  void Cut(const StepPeers& peers);
  absl::Status Reserve();
  // Chooses the products of the padded rows.
  absl::Status Prepare();
  GemmShape WideShape() const;
  GemmShape NarrowShape(const Node& node) const;
  absl::Status RunOnDevice(int64_t layer, StepPeers& peers);
  absl::Status Gather(StepPeers& peers);
  absl::Status Compute(int64_t layer);
  absl::Status Activate(int64_t layer);
  absl::Status Scatter(StepPeers& peers);
  // [all rows, hidden] Node i's sums. Its product writes the padding's rows as well: into node i + 1's, which
  // are written after it.
  float* sums(size_t node) const {
    return sums_.as<float>() + static_cast<int64_t>(node) * all_rows_ * hidden_;
  }

  const ModelConfig& config_;
  const DeviceWeights& weights_;
  DeviceOps& ops_;
  const int64_t hidden_;

  // Of the group that Enter was called with last: rank, world size, and whether collectives are on the
  // device; and what no batch exceeds.
  std::optional<std::tuple<int32_t, int32_t, bool>> place_;
  int64_t most_rows_ = 0;
  bool on_device_ = false;
  MlpPart part_;
  // By layer, in the part's columns.
  std::vector<const Bf16*> gates_weights_, ups_weights_;
  std::vector<Node> nodes_;
  // Of the step: this rank's rows, those that each rank brings, of all ranks, and with the products' padding.
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
