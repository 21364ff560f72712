// The MLP of a layer: all of it, or this rank's part of it.
//
// Purpose: the width inside the MLP is cut into the terms of a summation tree
// (worker/barrier/summation_tree.h), whole vectors each and as equal as can be; the sum of the down
// projection runs in the tree's order, on one rank too. So a group that shares the terms out (--mlp=tp) gives
// the same bits, whatever its size. A part is a view of the weights: nothing is copied when the group
// changes, and any width can be shared out.
//
// Together: all ranks' rows are gathered, padded to the step's largest batch; each rank computes its terms of
// all rows; the sums are scattered back to whom the rows belong. A rank without rows does its part of the
// others'. Threads: as forward.h says.
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

// Where term `term` begins in a width of `intermediate`; kSumTerms: where the last one ends.
int64_t TermBegin(int32_t term, int64_t intermediate);

class Mlp {
 public:
  // The arguments outlive this.
  Mlp(const ModelConfig& config, const Kernels& kernels, Threads& threads, int64_t max_rows);

  // hidden += MLP(x) of `rows` rows; both [rows, hidden].
  void Run(const Layer& layer, const float* x, float* hidden, int64_t rows);
  // The same, together with the peers. REQUIRES: rows <= peers.rows(). After an error, which is the peers',
  // `hidden` is as it was.
  absl::Status RunTogether(const Layer& layer, const float* x, float* hidden, int64_t rows, StepPeers& peers);

 private:
  // A rank's terms.
  struct Part {
    // Of the width inside.
    int64_t begin = 0, end = 0;
    std::vector<Term> terms;
    int64_t nodes = 0;
    int64_t width() const { return end - begin; }
  };
  Part PartOf(TermRange terms) const;

  // gate_ = silu(gate(x)) * up(x), within the part.
  void Widen(const Layer& layer, const Part& part, const float* x, int64_t rows);
  // y = the part's nodes of the down projection; `add`: to what is there, and then the bias.
  void Narrow(const Layer& layer, const Part& part, int64_t rows, float* y, bool add);

  const ModelConfig& config_;
  const Kernels& kernels_;
  Threads& threads_;
  const Part whole_;
  // [rows, part's width]
  AlignedFloats gate_, up_;
  // By thread.
  std::vector<AlignedFloats> scratch_;

  // Of RunTogether, for the group it was called with last. They grow with the batches.
  std::pair<int32_t, int32_t> rank_of_ = {-1, 0};
  Part part_;
  // [peers.rows(), hidden]: what this rank brings, and gets.
  AlignedFloats mine_;
  // [world_size, peers.rows(), hidden]
  AlignedFloats all_;
  // [nodes, world_size, peers.rows(), hidden]
  AlignedFloats sums_;
};

}  // namespace bfio::worker::cpu

#endif  // BFIO_WORKER_ENGINE_CPU_MLP_H_
