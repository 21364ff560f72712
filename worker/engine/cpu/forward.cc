#include "worker/engine/cpu/forward.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "worker/engine/model/rope.h"

namespace bfio::worker::cpu {
namespace {

// Prompt rows that attend together, so that a block of the cache is read once for all of them. Does not
// change a row's result.
constexpr int32_t kPieceRows = 16;

}  // namespace

Forward::Forward(std::shared_ptr<const Weights> weights, std::unique_ptr<KvCache> cache,
                 const Kernels& kernels, int32_t threads, int64_t max_rows, int64_t max_draws)
    : Forward(weights, weights->part().blocks, std::move(cache), kernels, threads, max_rows, max_draws) {}

Forward::Forward(std::shared_ptr<const Weights> weights, const BlockRange& blocks,
                 std::unique_ptr<KvCache> cache, const Kernels& kernels, int32_t threads, int64_t max_rows,
                 int64_t max_draws)
    : weights_(std::move(weights)),
      cache_(std::move(cache)),
      kernels_(kernels),
      config_(weights_->config()),
      blocks_(blocks),
      frequencies_(InverseFrequencies(config_.rope, config_.head_dim)),
      threads_(threads) {
  const auto resize = [](auto& buffer, int64_t rows, int64_t columns) {
    buffer.resize(static_cast<size_t>(rows * columns));
  };
  const int64_t kv_width = config_.kv_heads * config_.head_dim, q_width = config_.heads * config_.head_dim;
  resize(hidden_, max_rows, config_.hidden);
  resize(normed_, std::max(max_rows, max_draws), config_.hidden);
  resize(q_, max_rows, q_width);
  resize(k_, max_rows, kv_width);
  resize(v_, max_rows, kv_width);
  resize(attended_, max_rows, q_width);
  resize(gate_, max_rows, config_.intermediate);
  resize(up_, max_rows, config_.intermediate);
  if (weights_->part().ends) resize(logits_, max_draws, config_.vocab);
  resize(cos_, max_rows, config_.head_dim / 2);
  resize(sin_, max_rows, config_.head_dim / 2);
  const int64_t group = config_.heads / config_.kv_heads;
  scratch_.resize(static_cast<size_t>(threads));
  for (auto& scratch : scratch_) resize(scratch, 1, AttentionScratch(kPieceRows, group, config_.head_dim));
}

absl::Span<const float> Forward::Run(const StepPlan& plan) {
  if (plan.rows() == 0) return {};
  Begin(plan);
  Embed(plan);
  RunAllBlocks(plan);
  return LogitsOf(hidden_.data(), plan.logit_rows);
}

absl::Span<const float> Forward::RunHead(const StepPlan& plan) {
  Begin(plan);
  Embed(plan);
  RunAllBlocks(plan);
  return absl::MakeConstSpan(hidden_).subspan(0, static_cast<size_t>(rows_ * config_.hidden));
}

absl::Span<const float> Forward::RunBlocks(const StepPlan& plan, absl::Span<const float> hidden) {
  Begin(plan);
  std::copy(hidden.begin(), hidden.end(), hidden_.begin());
  RunAllBlocks(plan);
  return absl::MakeConstSpan(hidden_).subspan(0, hidden.size());
}

absl::Span<const float> Forward::Logits(absl::Span<const float> hidden) {
  std::vector<int32_t> rows(hidden.size() / static_cast<size_t>(config_.hidden));
  std::iota(rows.begin(), rows.end(), 0);
  return LogitsOf(hidden.data(), rows);
}

void Forward::RunAllBlocks(const StepPlan& plan) {
  for (int64_t index = 0; index < blocks_.count; ++index) {
    RunAttention(plan, index);
    RunMlp(layer(index));
  }
}

void Forward::Begin(const StepPlan& plan) {
  rows_ = plan.rows();
  FillRotations(plan);
  CutPieces(plan);
}

void Forward::Embed(const StepPlan& plan) {
  const Matrix& table = weights_->embedding();
  for (int64_t row = 0; row < rows_; ++row) {
    float* const to = hidden_.data() + row * config_.hidden;
    const int64_t at = int64_t{plan.token_ids[row]} * config_.hidden;
    if (table.bf16) {
      const uint16_t* const from = static_cast<const uint16_t*>(table.data) + at;
      for (int64_t i = 0; i < config_.hidden; ++i) to[i] = FromBf16(from[i]);
    } else {
      std::memcpy(to, static_cast<const float*>(table.data) + at, static_cast<size_t>(4 * config_.hidden));
    }
  }
}

void Forward::FillRotations(const StepPlan& plan) {
  const int64_t half = config_.head_dim / 2;
  threads_.For(rows_, 16 * half, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = 0; i < half; ++i) {
        // In fp32, as transformers computes it.
        const float angle = static_cast<float>(plan.positions[row]) * frequencies_[i];
        cos_[row * half + i] = std::cos(angle);
        sin_[row * half + i] = std::sin(angle);
      }
    }
  });
}

void Forward::CutPieces(const StepPlan& plan) {
  pieces_.clear();
  for (int32_t run = 0; run < plan.runs(); ++run) {
    const int32_t end = plan.run_rows[run + 1];
    for (int32_t row = plan.run_rows[run]; row < end; row += kPieceRows) {
      pieces_.push_back({run, row, std::min(kPieceRows, end - row)});
    }
  }
}

void Forward::RunAttention(const StepPlan& plan, int64_t index) {
  const Layer& weights = layer(index);
  Normalise(weights.input_norm);
  Project(weights);
  RotateAndStore(plan, weights, index);
  Attend(plan, index);
  threads_.Run(
      [&](int32_t thread) { Multiply(weights.o, attended_.data(), hidden_.data(), true, rows_, thread); });
  Normalise(weights.post_attention_norm);
}

void Forward::Normalise(const std::vector<float>& weight) {
  threads_.For(rows_, config_.hidden, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      kernels_.rms_norm(hidden_.data() + row * config_.hidden, weight.data(),
                        normed_.data() + row * config_.hidden, config_.hidden,
                        static_cast<float>(config_.rms_epsilon));
    }
  });
}

void Forward::Multiply(const Matrix& matrix, const float* x, float* y, bool add, int64_t rows,
                       int32_t thread) const {
  Linear linear;
  linear.x = x;
  linear.rows = rows;
  linear.weight = matrix.data;
  linear.inputs = matrix.inputs;
  linear.bias = matrix.bias.empty() ? nullptr : matrix.bias.data();
  linear.y = y;
  linear.y_stride = matrix.outputs;
  linear.add = add;
  const auto [begin, end] = Share(matrix.outputs, thread, threads_.count());
  (matrix.bf16 ? kernels_.linear_bf16 : kernels_.linear_f32)(linear, begin, end);
}

void Forward::Project(const Layer& layer) {
  threads_.Run([&](int32_t thread) {
    Multiply(layer.q, normed_.data(), q_.data(), false, rows_, thread);
    Multiply(layer.k, normed_.data(), k_.data(), false, rows_, thread);
    Multiply(layer.v, normed_.data(), v_.data(), false, rows_, thread);
  });
}

void Forward::PrepareHead(float* head, const std::vector<float>& norm, int64_t row) const {
  if (!norm.empty()) {
    kernels_.rms_norm(head, norm.data(), head, config_.head_dim, static_cast<float>(config_.rms_epsilon));
  }
  const int64_t half = config_.head_dim / 2;
  const float* const cosine = cos_.data() + row * half;
  const float* const sine = sin_.data() + row * half;
  for (int64_t i = 0; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cosine[i] - b * sine[i];
    head[i + half] = b * cosine[i] + a * sine[i];
  }
}

void Forward::RotateAndStore(const StepPlan& plan, const Layer& layer, int64_t index) {
  const int64_t dim = config_.head_dim;
  const int32_t page_tokens = cache_->shape().page_tokens;
  threads_.For(rows_, (config_.heads + 2 * config_.kv_heads) * dim, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t h = 0; h < config_.heads; ++h) {
        PrepareHead(q_.data() + (row * config_.heads + h) * dim, layer.q_norm, row);
      }
      const int32_t position = plan.positions[row];
      const PageId page = plan.pages[plan.run_pages[plan.row_runs[row]] + position / page_tokens];
      for (int64_t h = 0; h < config_.kv_heads; ++h) {
        const int64_t at = (row * config_.kv_heads + h) * dim;
        PrepareHead(k_.data() + at, layer.k_norm, row);
        cache_->Write(index, h, page, position % page_tokens, k_.data() + at, v_.data() + at);
      }
    }
  });
}

void Forward::Attend(const StepPlan& plan, int64_t index) {
  const int64_t dim = config_.head_dim, group = config_.heads / config_.kv_heads;
  const int64_t width = config_.heads * dim;
  // Pieces differ in cost with the length of their sequences, so each thread takes the next piece when it is
  // free.
  std::atomic<int64_t> next = 0;
  const int64_t count = static_cast<int64_t>(pieces_.size()) * config_.kv_heads;
  threads_.Run([&](int32_t thread) {
    for (int64_t i = next++; i < count; i = next++) {
      const Piece& piece = pieces_[i / config_.kv_heads];
      const int64_t head = i % config_.kv_heads;
      const int64_t at = piece.first_row * width + head * group * dim;
      Attention attention;
      attention.q = q_.data() + at;
      attention.q_stride = width;
      attention.out = attended_.data() + at;
      attention.out_stride = width;
      attention.rows = piece.rows;
      attention.group = static_cast<int32_t>(group);
      attention.head_dim = static_cast<int32_t>(dim);
      attention.positions = plan.positions.data() + piece.first_row;
      attention.keys = cache_->Keys(index, head);
      attention.values = cache_->Values(index, head);
      attention.page_stride = cache_->shape().page_stride();
      attention.pages = plan.pages.data() + plan.run_pages[piece.run];
      attention.page_tokens = cache_->shape().page_tokens;
      attention.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
      attention.scratch = scratch_[thread].data();
      kernels_.attend(attention);
    }
  });
}

void Forward::RunMlp(const Layer& layer) {
  threads_.Run([&](int32_t thread) {
    Multiply(layer.gate, normed_.data(), gate_.data(), false, rows_, thread);
    Multiply(layer.up, normed_.data(), up_.data(), false, rows_, thread);
    const auto [begin, end] = Share(config_.intermediate, thread, threads_.count());
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t at = row * config_.intermediate + begin;
      kernels_.silu_mul(gate_.data() + at, up_.data() + at, end - begin);
    }
  });
  threads_.Run(
      [&](int32_t thread) { Multiply(layer.down, gate_.data(), hidden_.data(), true, rows_, thread); });
}

absl::Span<const float> Forward::LogitsOf(const float* hidden, absl::Span<const int32_t> rows) {
  const auto draws = static_cast<int64_t>(rows.size());
  if (draws == 0) return {};
  for (int64_t i = 0; i < draws; ++i) {
    kernels_.rms_norm(hidden + rows[i] * config_.hidden, weights_->final_norm().data(),
                      normed_.data() + i * config_.hidden, config_.hidden,
                      static_cast<float>(config_.rms_epsilon));
  }
  threads_.Run([&](int32_t thread) {
    Multiply(weights_->lm_head(), normed_.data(), logits_.data(), false, draws, thread);
  });
  return absl::MakeConstSpan(logits_).subspan(0, static_cast<size_t>(draws * config_.vocab));
}

}  // namespace bfio::worker::cpu
