// The MLP of a layer: all of it, or this rank's part.
//
// Purpose: the intermediate width is divided into the terms of a summation tree
// (worker/barrier/summation_tree.h), in whole vectors and as evenly as possible. The down projection is
// summed in the tree's order, also on a single rank. So a group whose ranks split the terms (--mlp=tp) gives
// the same bits at any size. A part is a view of the weights: nothing is copied when the group changes, and
// any width can be split.
//
// Together: all ranks' rows are gathered, padded to the step's largest batch; each rank computes its terms of
// all rows; the sums are scattered back to the ranks that own the rows. A rank without rows still computes
// its part. Threads: as in forward.h.
#ifndef BFIO_WORKER_ENGINE_CPU_MLP_H_
#define BFIO_WORKER_ENGINE_CPU_MLP_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "worker/barrier/step_peers.h"
#include "worker/barrier/summation_tree.h"
#include "worker/engine/cpu/aligned.h"
#include "worker/engine/cpu/kernels.h"
#include "worker/engine/cpu/threads.h"
#include "worker/engine/cpu/weights.h"

namespace bfio::worker::cpu {

// The first column of term `term` in an intermediate width; for kSumTerms, the end of the last term.
int64_t TermBegin(int32_t term, int64_t intermediate);

class Mlp {
 public:
  // The arguments outlive this.
  Mlp(const ModelConfig& config, const Kernels& kernels, Threads& threads, int64_t max_rows);

  // hidden += MLP(x) for `rows` rows; both are [rows, hidden].
  void Run(const Layer& layer, const float* x, float* hidden, int64_t rows);
  // The same, together with the peers. REQUIRES: rows <= peers.rows(). An error comes from the peers and
  // leaves `hidden` unchanged.
  absl::Status RunTogether(const Layer& layer, const float* x, float* hidden, int64_t rows, StepPeers& peers);

 private:
  // The terms that one rank computes.
  struct Part {
    // Range of the intermediate width.
    int64_t begin = 0, end = 0;
    std::vector<Term> terms;
    int64_t nodes = 0;
    int64_t width() const { return end - begin; }
  };
  Part PartOf(TermRange terms) const;

  // gate_ = silu(gate(x)) * up(x), within the part.
  void Widen(const Layer& layer, const Part& part, const float* x, int64_t rows);
  // y = the partial sums of the down projection, one per node of the part. `add`: adds them to y, and then
  // the bias.
  void Narrow(const Layer& layer, const Part& part, int64_t rows, float* y, bool add);

  const ModelConfig& config_;
  const Kernels& kernels_;
  Threads& threads_;
  const Part whole_;
  // [rows, part's width]
  AlignedFloats gate_, up_;
  // By thread.
  std::vector<AlignedFloats> scratch_;

  // State of RunTogether for the group that it was last called with. Buffers grow with the batches.
  std::pair<int32_t, int32_t> rank_of_ = {-1, 0};
  Part part_;
  // [peers.rows(), hidden]: this rank's input rows, then its summed output.
  AlignedFloats mine_;
  // [world_size, peers.rows(), hidden]
  AlignedFloats all_;
  // [nodes, world_size, peers.rows(), hidden]
  AlignedFloats sums_;
};

}  // namespace bfio::worker::cpu

#endif  // BFIO_WORKER_ENGINE_CPU_MLP_H_
