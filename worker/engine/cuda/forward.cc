#include "worker/engine/cuda/forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/engine/cuda/kernels/row_kernels.h"
#include "worker/engine/model/rope.h"

namespace bfio::worker::gpu {
namespace {

constexpr absl::Duration kSetupDeadline = absl::Seconds(60);

absl::Status CheckConfig(const ModelConfig& config, const AttentionShape& shape) {
  BFIO_RETURN_IF_ERROR(CheckAttentionShape(shape));
  if (config.vocab > kMaxVocab) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocab_size is ", config.vocab, "; the CUDA engine supports at most ", kMaxVocab));
  }
  if (config.hidden % 8 != 0 || config.intermediate % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("hidden_size ", config.hidden, " and intermediate_size ",
                                                   config.intermediate,
                                                   " must be multiples of 8 for the CUDA engine"));
  }
  return absl::OkStatus();
}

KvLayout LayoutOf(const ModelConfig& config, const ForwardOptions& options) {
  return {static_cast<int32_t>(config.kv_heads), options.page_tokens, static_cast<int32_t>(config.head_dim)};
}

}  // namespace

AttentionShape ShapeOf(const ModelConfig& config, int32_t page_tokens) {
  return {static_cast<int32_t>(config.heads), static_cast<int32_t>(config.kv_heads),
          static_cast<int32_t>(config.head_dim), page_tokens};
}

absl::StatusOr<std::unique_ptr<Forward>> Forward::Create(const ModelConfig& config,
                                                         const DeviceWeights& weights,
                                                         const ForwardOptions& options,
                                                         const AttentionSizes& sizes, DeviceOps& ops) {
  auto forward = std::unique_ptr<Forward>(new Forward(config, weights, options, ops));
  BFIO_RETURN_IF_ERROR(CheckConfig(config, ShapeOf(config, options.page_tokens)));
  BFIO_RETURN_IF_ERROR(forward->Allocate(sizes));
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

// --- memory ---

template <typename Visit>
void Forward::ForEachArray(const ModelConfig& config, const DeviceWeights& weights,
                           const ForwardOptions& options, const AttentionSizes& sizes, const Visit& visit) {
  constexpr int64_t kNarrow = sizeof(Bf16), kWide = sizeof(float);
  const int64_t rows = options.max_rows, heads = config.heads * config.head_dim;
  // A part without ends draws nothing.
  const int64_t draws = weights.embedding != nullptr ? options.max_draws : 0;
  visit(&Forward::residual_, rows * config.hidden * kWide);
  visit(&Forward::rotations_, rows * config.head_dim * kWide);
  visit(&Forward::normed_, std::max<int64_t>(rows, options.max_draws) * config.hidden * kNarrow);
  visit(&Forward::projected_, rows * (config.heads + 2 * config.kv_heads) * config.head_dim * kNarrow);
  visit(&Forward::attended_, rows * heads * kNarrow);
  visit(&Forward::addend_, rows * config.hidden * kNarrow);
  visit(&Forward::gates_, rows * 2 * config.intermediate * kNarrow);
  visit(&Forward::activated_, rows * config.intermediate * kNarrow);
  visit(&Forward::logits_, draws * config.vocab * kWide);
  visit(&Forward::results_, draws * static_cast<int64_t>(sizeof(DrawResult)));
  visit(&Forward::tops_, draws * kMaxTop * static_cast<int64_t>(sizeof(TopResult)));
  visit(&Forward::frequencies_, config.head_dim / 2 * kWide);
  visit(&Forward::part_outputs_, sizes.parts * heads * kWide);
  visit(&Forward::part_sums_, sizes.parts * 2 * config.heads * kWide);
  const int64_t pool = LayoutOf(config, options).PoolElements(options.pages);
  for (Bf16* Forward::*const kv : {&Forward::keys_, &Forward::values_})
    visit(kv, static_cast<int64_t>(weights.layers.size()) * pool * kNarrow, "the KV cache");
}

int64_t Forward::BytesOf(const ModelConfig& config, const DeviceWeights& weights,
                         const ForwardOptions& options, const AttentionSizes& sizes) {
  int64_t sum = 0;
  ForEachArray(config, weights, options, sizes,
               [&](auto, int64_t bytes, absl::string_view = "") { sum += bytes; });
  return sum;
}

absl::Status Forward::Allocate(const AttentionSizes& sizes) {
  absl::Status status;
  // Zero-initialised, so that rows that a step does not use never hold NaN. Keys and values also: attention
  // masks what it reads past a sequence's end by a weight of 0, and 0 times NaN is NaN.
  const auto allocate = [&]<typename T>(T* Forward::*array, int64_t size,
                                        absl::string_view what = "activations") {
    if (!status.ok() || size == 0) return;
    const auto memory = ops_.Allocate(size, what);
    status = memory.status();
    if (!status.ok()) return;
    this->*array = static_cast<T*>(*memory);
    status = ops_.FillZero(*memory, size);
  };
  ForEachArray(config_, weights_, options_, sizes, allocate);
  if (!status.ok()) return status;
  const std::vector<float> frequencies = InverseFrequencies(config_.rope, config_.head_dim);
  const auto bytes = static_cast<int64_t>(frequencies.size() * sizeof(float));
  BFIO_ASSIGN_OR_RETURN(const auto pinned, ops_.AllocatePinned(bytes, "rotary frequencies"));
  std::memcpy(pinned, frequencies.data(), static_cast<size_t>(bytes));
  BFIO_RETURN_IF_ERROR(ops_.CopyIn(frequencies_, pinned, bytes));
  return ops_.Wait(kSetupDeadline);
}

int64_t Forward::pool_elements() const {
  return LayoutOf(config_, options_).PoolElements(options_.pages);
}

int64_t Forward::kv_token_bytes() const {
  return 2 * layers() * config_.kv_heads * config_.head_dim * static_cast<int64_t>(sizeof(Bf16));
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
  BFIO_RETURN_IF_ERROR(Prepare(gate_up_, bucket.rows, normed_, gates_));
  BFIO_RETURN_IF_ERROR(Prepare(down_, bucket.rows, activated_, addend_));
  if (weights_.embedding == nullptr) return absl::OkStatus();
  return Prepare(lm_head_, bucket.draws, normed_, logits_);
}

// --- a step ---

absl::Status Forward::Enqueue(const StepBucket& bucket, const StepInputs& inputs) {
  BFIO_RETURN_IF_ERROR(RunLayers(bucket, inputs));
  const Addend last = {addend_, weights_.layers.back().down_bias};
  BFIO_RETURN_IF_ERROR(Norm(bucket, inputs, last, weights_.final_norm, true));
  return Draw(bucket, inputs);
}

absl::Status Forward::EnqueueBlocks(const StepBucket& bucket, const StepInputs& inputs) {
  BFIO_RETURN_IF_ERROR(RunLayers(bucket, inputs));
  return Norm(bucket, inputs, {addend_, weights_.layers.back().down_bias}, nullptr, false);
}

absl::Status Forward::EnqueueDraws(const StepBucket& bucket, const StepInputs& inputs) {
  BFIO_RETURN_IF_ERROR(Norm(bucket, inputs, {}, weights_.final_norm, false));
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

absl::Status Forward::RunLayer(const StepBucket& bucket, const StepInputs& inputs, int64_t layer) {
  const DeviceLayer& w = weights_.layers[layer];
  // The output of the previous layer, still to be added to the residual.
  Addend before;
  if (layer > 0) before = {addend_, weights_.layers[layer - 1].down_bias};
  BFIO_RETURN_IF_ERROR(Norm(bucket, inputs, before, w.input_norm, false));
  BFIO_RETURN_IF_ERROR(Multiply(qkv_, layer, bucket.rows, normed_, projected_));
  BFIO_RETURN_IF_ERROR(AppendKv(bucket, inputs, layer));
  BFIO_RETURN_IF_ERROR(Attend(bucket, inputs, layer));
  BFIO_RETURN_IF_ERROR(Multiply(o_, layer, bucket.rows, attended_, addend_));
  BFIO_RETURN_IF_ERROR(Norm(bucket, inputs, {addend_, w.o_bias}, w.post_attention_norm, false));
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
                           const Bf16* weight, bool picked) {
  NormArgs args;
  args.counts = inputs.counts;
  args.picked = picked ? inputs.logit_rows : nullptr;
  args.residual = residual_;
  args.addend = addend.rows;
  args.bias = addend.bias;
  args.weight = weight;
  args.epsilon = static_cast<float>(config_.rms_epsilon);
  args.hidden = static_cast<int32_t>(config_.hidden);
  args.normed = weight != nullptr ? normed_ : nullptr;
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
  args.kv = LayoutOf(config_, options_);
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
  args.kv = LayoutOf(config_, options_);
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
  args.bias = weights_.layers[layer].gate_up_bias;
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
  args.tops = tops_;
  args.grid_draws = bucket.draws;
  return LaunchStatus(LaunchSample(args, ops_.stream()), "Sample");
}

}  // namespace bfio::worker::gpu
