#include "worker/engine/cpu/mlp.h"

#include <algorithm>

namespace bfio::worker::cpu {
namespace {

// Only grows: buffers reach the size of the largest batch and keep it.
void Reserve(AlignedFloats& buffer, int64_t size) {
  if (buffer.size() < static_cast<size_t>(size)) buffer.resize(static_cast<size_t>(size));
}

// Address of element `at` of `matrix`.
const void* From(const Matrix& matrix, int64_t at) {
  return static_cast<const char*>(matrix.data) + at * (matrix.bf16 ? 2 : 4);
}

}  // namespace

int64_t TermBegin(int32_t term, int64_t intermediate) {
  const int64_t vectors = (intermediate + kLanes - 1) / kLanes;
  return std::min(intermediate, kLanes * (vectors * term / kSumTerms));
}

Mlp::Mlp(const ModelConfig& config, const Kernels& kernels, Threads& threads, int64_t max_rows)
    : config_(config), kernels_(kernels), threads_(threads), whole_(PartOf({0, kSumTerms})) {
  Reserve(gate_, max_rows * config_.intermediate);
  Reserve(up_, max_rows * config_.intermediate);
  scratch_.resize(static_cast<size_t>(threads_.count()));
  for (AlignedFloats& scratch : scratch_) Reserve(scratch, TermScratch(max_rows));
}

Mlp::Part Mlp::PartOf(TermRange terms) const {
  Part part;
  part.begin = TermBegin(terms.begin, config_.intermediate);
  part.end = TermBegin(terms.end, config_.intermediate);
  for (const TermRange& node : NodesOf(terms)) {
    for (int32_t term = node.begin; term < node.end; ++term) {
      // The number of complete left neighbours to merge with, as the carries of a binary counter.
      const int32_t folds = __builtin_ctz(static_cast<uint32_t>(term - node.begin + 1));
      const bool last = term + 1 == node.end;
      part.terms.push_back({TermBegin(term, config_.intermediate) - part.begin,
                            TermBegin(term + 1, config_.intermediate) - part.begin, folds,
                            last ? static_cast<int32_t>(part.nodes) : -1});
    }
    ++part.nodes;
  }
  return part;
}

void Mlp::Run(const Layer& layer, const float* x, float* hidden, int64_t rows) {
  Widen(layer, whole_, x, rows);
  Narrow(layer, whole_, rows, hidden, true);
}

absl::Status Mlp::RunTogether(const Layer& layer, const float* x, float* hidden, int64_t rows,
                              StepPeers& peers) {
  if (rank_of_ != std::pair(peers.rank(), peers.world_size())) {
    part_ = PartOf(TermsOf(peers.rank(), peers.world_size()));
    rank_of_ = {peers.rank(), peers.world_size()};
  }
  const int64_t size = peers.rows() * config_.hidden, all_rows = peers.world_size() * peers.rows();
  Reserve(mine_, size);
  Reserve(all_, peers.world_size() * size);
  Reserve(sums_, part_.nodes * peers.world_size() * size);
  std::copy_n(x, rows * config_.hidden, mine_.data());
  std::fill(mine_.begin() + rows * config_.hidden, mine_.begin() + size, 0.0f);
  const auto mine = absl::MakeSpan(mine_).subspan(0, static_cast<size_t>(size));
  const auto all = absl::MakeSpan(all_).subspan(0, static_cast<size_t>(peers.world_size() * size));
  if (absl::Status status = peers.AllGather(mine, all); !status.ok()) return status;
  if (part_.nodes > 0) {
    Widen(layer, part_, all.data(), all_rows);
    Narrow(layer, part_, all_rows, sums_.data(), false);
  }
  const auto sums = absl::MakeConstSpan(sums_).subspan(0, static_cast<size_t>(part_.nodes) * all.size());
  if (absl::Status status = peers.ReduceScatter(sums, mine); !status.ok()) return status;
  // In the same order as Narrow.
  const float* const bias = layer.down.bias.empty() ? nullptr : layer.down.bias.data();
  for (int64_t row = 0; row < rows; ++row) {
    float* const to = hidden + row * config_.hidden;
    const float* const sum = mine.data() + row * config_.hidden;
    for (int64_t i = 0; i < config_.hidden; ++i) {
      to[i] = bias == nullptr ? sum[i] + to[i] : sum[i] + to[i] + bias[i];
    }
  }
  return absl::OkStatus();
}

void Mlp::Widen(const Layer& layer, const Part& part, const float* x, int64_t rows) {
  Reserve(gate_, rows * part.width());
  Reserve(up_, rows * part.width());
  const auto multiply = [&](const Matrix& matrix, float* y, int64_t begin, int64_t end) {
    Linear linear;
    linear.x = x;
    linear.x_stride = config_.hidden;
    linear.rows = rows;
    linear.weight = From(matrix, part.begin * config_.hidden);
    linear.inputs = config_.hidden;
    linear.bias = matrix.bias.empty() ? nullptr : matrix.bias.data() + part.begin;
    linear.y = y;
    linear.y_stride = part.width();
    (matrix.bf16 ? kernels_.linear_bf16 : kernels_.linear_f32)(linear, begin, end);
  };
  threads_.Run([&](int32_t thread) {
    const auto [begin, end] = Share(part.width(), thread, threads_.count());
    multiply(layer.gate, gate_.data(), begin, end);
    multiply(layer.up, up_.data(), begin, end);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = row * part.width() + begin;
      kernels_.silu_mul(gate_.data() + at, up_.data() + at, end - begin);
    }
  });
}

void Mlp::Narrow(const Layer& layer, const Part& part, int64_t rows, float* y, bool add) {
  TermSum sum;
  sum.x = gate_.data();
  sum.x_stride = part.width();
  sum.rows = rows;
  sum.weight = From(layer.down, part.begin);
  sum.weight_stride = config_.intermediate;
  sum.terms = part.terms.data();
  sum.count = static_cast<int32_t>(part.terms.size());
  sum.y = y;
  sum.node_stride = rows * config_.hidden;
  sum.y_stride = config_.hidden;
  sum.add = add;
  sum.bias = add && !layer.down.bias.empty() ? layer.down.bias.data() : nullptr;
  threads_.Run([&](int32_t thread) {
    TermSum mine = sum;
    Reserve(scratch_[thread], TermScratch(rows));
    mine.scratch = scratch_[thread].data();
    const auto [begin, end] = Share(config_.hidden, thread, threads_.count());
    (layer.down.bf16 ? kernels_.sum_terms_bf16 : kernels_.sum_terms_f32)(mine, begin, end);
  });
}

}  // namespace bfio::worker::cpu
