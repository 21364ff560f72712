#include "worker/engine/cuda/forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/return_if_error.h"
#include "worker/engine/cuda/kernels/attention.h"
#include "worker/engine/cuda/kernels/row_kernels.h"
#include "worker/engine/model/rope.h"

namespace bfio::worker::gpu {
namespace {

// Of a device's memory, what the KV cache leaves alone: a share, and at most so much.
constexpr int64_t kReserveShare = 32, kMostReserve = int64_t{2} << 30;
constexpr absl::Duration kSetupDeadline = absl::Seconds(60);

absl::Status CheckConfig(const ModelConfig& config, const AttentionShape& shape) {
  BFIO_RETURN_IF_ERROR(CheckAttentionShape(shape));
  if (config.vocab > kMaxVocab) {
    return absl::InvalidArgumentError(
        absl::StrCat("a vocabulary of ", config.vocab, ": the CUDA engine draws from at most ", kMaxVocab));
  }
  if (config.hidden % 8 != 0 || config.intermediate % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("hidden_size ", config.hidden, " and intermediate_size ",
                                                   config.intermediate,
                                                   ": the CUDA engine needs multiples of 8"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Forward>> Forward::Create(const ModelConfig& config,
                                                         const DeviceWeights& weights,
                                                         const ForwardOptions& options,
                                                         const AttentionSizes& sizes, DeviceOps& ops) {
  auto forward = std::unique_ptr<Forward>(new Forward(config, weights, options, ops));
  BFIO_RETURN_IF_ERROR(CheckConfig(config, forward->attention_shape()));
  BFIO_RETURN_IF_ERROR(forward->Allocate(sizes));
  BFIO_RETURN_IF_ERROR(forward->AllocateKv());
  return forward;
}

Forward::Forward(const ModelConfig& config, const DeviceWeights& weights, const ForwardOptions& options,
                 DeviceOps& ops)
    : config_(config), weights_(weights), options_(options), ops_(ops) {
  const auto hidden = static_cast<int32_t>(config.hidden), wide = static_cast<int32_t>(config.intermediate);
  const auto query = static_cast<int32_t>(config.heads * config.head_dim);
  const auto all = static_cast<int32_t>((config.heads + 2 * config.kv_heads) * config.head_dim);
  qkv_ = {{}, all, hidden};
  o_ = {{}, hidden, query};
  gate_up_ = {{}, 2 * wide, hidden};
  down_ = {{}, hidden, wide};
  lm_head_ = {{weights.lm_head}, static_cast<int32_t>(config.vocab), hidden, true};
  for (const DeviceLayer& layer : weights.layers) {
    qkv_.weights.push_back(layer.qkv);
    o_.weights.push_back(layer.o);
    gate_up_.weights.push_back(layer.gate_up);
    down_.weights.push_back(layer.down);
  }
}

AttentionShape Forward::attention_shape() const {
  return {static_cast<int32_t>(config_.heads), static_cast<int32_t>(config_.kv_heads),
          static_cast<int32_t>(config_.head_dim), options_.page_tokens};
}

// --- memory ---

absl::Status Forward::Allocate(const AttentionSizes& sizes) {
  absl::Status status;
  // Zeros, so that the rows a step does not use never hold anything that is no number.
  const auto allocate = [&]<typename T>(T*& pointer, int64_t rows, int64_t columns) {
    if (!status.ok()) return;
    const int64_t bytes = std::max<int64_t>(1, rows * columns) * static_cast<int64_t>(sizeof(T));
    const auto memory = ops_.Allocate(bytes, "activations");
    status = memory.status();
    if (!status.ok()) return;
    pointer = static_cast<T*>(*memory);
    status = ops_.FillZero(pointer, bytes);
  };
  const int64_t rows = options_.max_rows, draws = options_.max_draws, half = config_.head_dim / 2;
  allocate(residual_, rows, config_.hidden);
  allocate(rotations_, rows, 2 * half);
  allocate(normed_, std::max(rows, draws), config_.hidden);
  allocate(projected_, rows, qkv_.outputs);
  allocate(attended_, rows, o_.inputs);
  allocate(addend_, rows, config_.hidden);
  if (!options_.share_mlp) {
    allocate(gates_, rows, gate_up_.outputs);
    allocate(activated_, rows, down_.inputs);
  }
  if (weights_.embedding != nullptr) {
    allocate(logits_, draws, config_.vocab);
    allocate(results_, draws, 1);
  }
  allocate(frequencies_, 1, half);
  allocate(part_outputs_, sizes.parts, config_.heads * config_.head_dim);
  allocate(part_sums_, sizes.parts, 2 * config_.heads);
  if (!status.ok()) return status;
  const std::vector<float> frequencies = InverseFrequencies(config_.rope, config_.head_dim);
  const auto bytes = static_cast<int64_t>(frequencies.size() * sizeof(float));
  const auto pinned = ops_.AllocatePinned(bytes, "rotary frequencies");
  if (!pinned.ok()) return pinned.status();
  std::memcpy(*pinned, frequencies.data(), static_cast<size_t>(bytes));
  BFIO_RETURN_IF_ERROR(ops_.CopyIn(frequencies_, *pinned, bytes));
  return ops_.Wait(kSetupDeadline);
}

int64_t Forward::pool_elements() const {
  return KvLayout{static_cast<int32_t>(config_.kv_heads), options_.page_tokens,
                  static_cast<int32_t>(config_.head_dim)}
      .PoolElements(options_.pages);
}

int64_t Forward::kv_token_bytes() const {
  return 2 * layers() * config_.kv_heads * config_.head_dim * static_cast<int64_t>(sizeof(Bf16));
}

absl::Status Forward::AllocateKv() {
  const auto memory = ops_.Memory();
  if (!memory.ok()) return memory.status();
  const int64_t each = layers() * pool_elements() * static_cast<int64_t>(sizeof(Bf16));
  // For what comes later: recorded graphs, kernels loaded at their first use, the barrier's buffers.
  const int64_t reserve = std::min(memory->total_bytes / kReserveShare, kMostReserve);
  const int64_t room = std::max<int64_t>(0, memory->free_bytes - reserve);
  // Each sequence's last page.
  const int64_t part_empty = options_.pages * options_.page_tokens - options_.kv_tokens;
  if (2 * each > room) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "--kv_tokens=%d needs %.2f GiB of KV cache, and %.2f of %.2f GiB are free on %s "
        "beside the weights, of which %.2f are kept for graphs and the barrier: at most some %d "
        "tokens fit",
        options_.kv_tokens, 2 * each / kGiB, memory->free_bytes / kGiB, memory->total_bytes / kGiB,
        ops_.Describe(), reserve / kGiB, std::max<int64_t>(0, room / kv_token_bytes() - part_empty)));
  }
  for (Bf16** pool : {&keys_, &values_}) {
    const auto block = ops_.Allocate(each, "the KV cache");
    if (!block.ok()) return block.status();
    *pool = static_cast<Bf16*>(*block);
  }
  // Attention masks what it reads beyond a sequence's end by a weight of 0, which must meet a number.
  BFIO_RETURN_IF_ERROR(ops_.FillZero(keys_, each));
  BFIO_RETURN_IF_ERROR(ops_.FillZero(values_, each));
  return ops_.Wait(kSetupDeadline);
}

// --- products ---

absl::Status Forward::Prepare(const Product& product, int32_t rows, const Bf16* x, void* y) {
  return ops_.Prepare({rows, product.inputs, product.outputs, product.fp32_out}, product.weights, x, y);
}

absl::Status Forward::Multiply(const Product& product, int64_t layer, int32_t rows, const Bf16* x, void* y) {
  return ops_.Multiply({rows, product.inputs, product.outputs, product.fp32_out}, x, product.weights[layer],
                       y);
}

absl::Status Forward::Prepare(const StepBucket& bucket) {
  BFIO_RETURN_IF_ERROR(Prepare(qkv_, bucket.rows, normed_, projected_));
  BFIO_RETURN_IF_ERROR(Prepare(o_, bucket.rows, attended_, addend_));
  if (!options_.share_mlp) {
    BFIO_RETURN_IF_ERROR(Prepare(gate_up_, bucket.rows, normed_, gates_));
    BFIO_RETURN_IF_ERROR(Prepare(down_, bucket.rows, activated_, addend_));
  }
  if (weights_.embedding == nullptr) return absl::OkStatus();
  return Prepare(lm_head_, bucket.draws, normed_, logits_);
}

// --- a step ---

absl::Status Forward::Enqueue(const StepBucket& bucket, const StepInputs& inputs) {
  BFIO_RETURN_IF_ERROR(RunLayers(bucket, inputs));
  const Addend last = {addend_, nullptr, weights_.layers.back().down_bias};
  BFIO_RETURN_IF_ERROR(Norm(bucket, inputs, last, weights_.final_norm, true, normed_));
  return Draw(bucket, inputs);
}

absl::Status Forward::EnqueueAttentionHalf(const StepBucket& bucket, const StepInputs& inputs, int64_t layer,
                                           const float* before, Bf16* mlp_input) {
  if (layer == 0) {
    BFIO_RETURN_IF_ERROR(Embed(bucket, inputs));
    return RunAttention(bucket, inputs, layer, {}, mlp_input);
  }
  return RunAttention(bucket, inputs, layer, {nullptr, before, weights_.layers[layer - 1].down_bias},
                      mlp_input);
}

absl::Status Forward::EnqueueEnd(const StepBucket& bucket, const StepInputs& inputs, const float* before) {
  const Addend last = {nullptr, before, weights_.layers.back().down_bias};
  BFIO_RETURN_IF_ERROR(Norm(bucket, inputs, last, weights_.final_norm, true, normed_));
  return Draw(bucket, inputs);
}

absl::Status Forward::EnqueueBlocks(const StepBucket& bucket, const StepInputs& inputs) {
  BFIO_RETURN_IF_ERROR(RunLayers(bucket, inputs));
  return Norm(bucket, inputs, {addend_, nullptr, weights_.layers.back().down_bias}, nullptr, false, normed_);
}

absl::Status Forward::EnqueueDraws(const StepBucket& bucket, const StepInputs& inputs) {
  BFIO_RETURN_IF_ERROR(Norm(bucket, inputs, {}, weights_.final_norm, false, normed_));
  return Draw(bucket, inputs);
}

absl::Status Forward::RunLayers(const StepBucket& bucket, const StepInputs& inputs) {
  BFIO_RETURN_IF_ERROR(Embed(bucket, inputs));
  for (int64_t layer = 0; layer < layers(); ++layer) {
    BFIO_RETURN_IF_ERROR(RunLayer(bucket, inputs, layer));
  }
  return absl::OkStatus();
}

absl::Status Forward::EnqueueAttention(const StepBucket& bucket, const StepInputs& inputs) {
  for (int64_t layer = 0; layer < layers(); ++layer) {
    BFIO_RETURN_IF_ERROR(Attend(bucket, inputs, layer));
  }
  return absl::OkStatus();
}

absl::Status Forward::RunAttention(const StepBucket& bucket, const StepInputs& inputs, int64_t layer,
                                   const Addend& before, Bf16* normed) {
  const DeviceLayer& w = weights_.layers[layer];
  BFIO_RETURN_IF_ERROR(Norm(bucket, inputs, before, w.input_norm, false, normed_));
  BFIO_RETURN_IF_ERROR(Multiply(qkv_, layer, bucket.rows, normed_, projected_));
  BFIO_RETURN_IF_ERROR(AppendKv(bucket, inputs, layer));
  BFIO_RETURN_IF_ERROR(Attend(bucket, inputs, layer));
  BFIO_RETURN_IF_ERROR(Multiply(o_, layer, bucket.rows, attended_, addend_));
  return Norm(bucket, inputs, {addend_, nullptr, w.o_bias}, w.post_attention_norm, false, normed);
}

absl::Status Forward::RunLayer(const StepBucket& bucket, const StepInputs& inputs, int64_t layer) {
  // What the layer before left to be added.
  Addend before;
  if (layer > 0) before = {addend_, nullptr, weights_.layers[layer - 1].down_bias};
  BFIO_RETURN_IF_ERROR(RunAttention(bucket, inputs, layer, before, normed_));
  BFIO_RETURN_IF_ERROR(Multiply(gate_up_, layer, bucket.rows, normed_, gates_));
  BFIO_RETURN_IF_ERROR(Activate(bucket, inputs, layer));
  return Multiply(down_, layer, bucket.rows, activated_, addend_);
}

absl::Status Forward::Embed(const StepBucket& bucket, const StepInputs& inputs) {
  EmbedArgs args;
  args.counts = inputs.counts;
  args.token_ids = inputs.token_ids;
  args.positions = inputs.positions;
  args.table = weights_.embedding;
  args.hidden = static_cast<int32_t>(config_.hidden);
  args.frequencies = frequencies_;
  args.half_dim = static_cast<int32_t>(config_.head_dim / 2);
  args.residual = residual_;
  args.rotations = rotations_;
  args.grid_rows = bucket.rows;
  return LaunchStatus(LaunchEmbed(args, ops_.stream()), "Embed");
}

absl::Status Forward::Norm(const StepBucket& bucket, const StepInputs& inputs, const Addend& addend,
                           const Bf16* weight, bool picked, Bf16* normed) {
  NormArgs args;
  args.counts = inputs.counts;
  args.picked = picked ? inputs.logit_rows : nullptr;
  args.residual = residual_;
  args.addend = addend.narrow;
  args.wide_addend = addend.wide;
  args.bias = addend.bias;
  args.weight = weight;
  args.epsilon = static_cast<float>(config_.rms_epsilon);
  args.hidden = static_cast<int32_t>(config_.hidden);
  args.normed = weight != nullptr ? normed : nullptr;
  args.grid_rows = picked ? bucket.draws : bucket.rows;
  return LaunchStatus(LaunchNorm(args, ops_.stream()), "Norm");
}

absl::Status Forward::AppendKv(const StepBucket& bucket, const StepInputs& inputs, int64_t layer) {
  const DeviceLayer& w = weights_.layers[layer];
  QkvArgs args;
  args.counts = inputs.counts;
  args.qkv = projected_;
  args.bias = w.qkv_bias;
  args.q_norm = w.q_norm;
  args.k_norm = w.k_norm;
  args.epsilon = static_cast<float>(config_.rms_epsilon);
  args.q_heads = static_cast<int32_t>(config_.heads);
  args.rotations = rotations_;
  args.positions = inputs.positions;
  args.row_pages = inputs.row_pages;
  args.kv = {static_cast<int32_t>(config_.kv_heads), options_.page_tokens,
             static_cast<int32_t>(config_.head_dim)};
  args.keys = keys_ + layer * pool_elements();
  args.values = values_ + layer * pool_elements();
  args.grid_rows = bucket.rows;
  return LaunchStatus(LaunchQkv(args, ops_.stream()), "Qkv");
}

absl::Status Forward::Attend(const StepBucket& bucket, const StepInputs& inputs, int64_t layer) {
  AttentionArgs args;
  args.counts = inputs.attention_counts;
  args.short_items = inputs.short_items;
  args.long_items = inputs.long_items;
  args.combines = inputs.combines;
  args.pages = inputs.numbers;
  args.queries = projected_;
  args.q_stride = qkv_.outputs;
  args.q_heads = static_cast<int32_t>(config_.heads);
  args.keys = keys_ + layer * pool_elements();
  args.values = values_ + layer * pool_elements();
  args.kv = {static_cast<int32_t>(config_.kv_heads), options_.page_tokens,
             static_cast<int32_t>(config_.head_dim)};
  args.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config_.head_dim)));
  args.out = attended_;
  args.part_outputs = part_outputs_;
  args.part_sums = part_sums_;
  AttentionGrid grid = options_.attention_grid;
  if (!bucket.prompts) grid.long_blocks = 0;
  return LaunchStatus(LaunchAttention(args, grid, ops_.stream()), "Attention");
}

absl::Status Forward::Activate(const StepBucket& bucket, const StepInputs& inputs, int64_t layer) {
  SiluArgs args;
  args.counts = inputs.counts;
  args.gate_up = gates_;
  if (const Bf16* const bias = weights_.layers[layer].gate_up_bias; bias != nullptr) {
    args.gate_bias = bias;
    args.up_bias = bias + config_.intermediate;
  }
  args.width = static_cast<int32_t>(config_.intermediate);
  args.out = activated_;
  args.grid_rows = bucket.rows;
  return LaunchStatus(LaunchSilu(args, ops_.stream()), "Silu");
}

absl::Status Forward::Draw(const StepBucket& bucket, const StepInputs& inputs) {
  BFIO_RETURN_IF_ERROR(Multiply(lm_head_, 0, bucket.draws, normed_, logits_));
  SampleArgs args;
  args.counts = inputs.counts;
  args.logits = logits_;
  args.vocab = static_cast<int32_t>(config_.vocab);
  args.params = inputs.draws;
  args.ends = reinterpret_cast<const uint32_t*>(inputs.numbers);
  args.results = results_;
  args.grid_draws = bucket.draws;
  return LaunchStatus(LaunchSample(args, ops_.stream()), "Sample");
}

}  // namespace bfio::worker::gpu
