#include "worker/engine/cuda/device_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "worker/engine/cuda/kernels/row_kernels.h"
#include "worker/engine/model/element.h"

namespace bfio::worker::gpu {
namespace {

constexpr int64_t kAlignment = 256;
// Size of each of the two staging buffers, which are used alternately.
constexpr int64_t kStagingBytes = 32 << 20;
constexpr int64_t kProgressBytes = int64_t{2} << 30;
constexpr absl::Duration kCopyDeadline = absl::Seconds(60);

// Tensors that are stored one after the other on the device.
struct Piece {
  const Bf16** place;
  int64_t elements;
  // Empty without a model.
  std::vector<TensorView> from;
  // For random weights: uniform in centre - spread .. centre + spread.
  float spread;
  float centre;

  int64_t bytes() const {
    return (elements * static_cast<int64_t>(sizeof(Bf16)) + kAlignment - 1) / kAlignment * kAlignment;
  }
};

// The pieces of a part in the order of use. Sizes the layers of `weights`; their pointers are set later.
class PieceList {
 public:
  PieceList(const ModelConfig& config, const Model* model, const ModelPart& part, DeviceWeights& weights)
      : config_(config), model_(model) {
    weights.layers.resize(static_cast<size_t>(part.blocks.count));
    if (part.ends) {
      AddMatrix(&weights.embedding, config.vocab, config.hidden, {model ? &model->embedding() : nullptr});
      step_bytes_ = 0;  // a step reads only some rows of the embedding
    }
    for (int32_t i = 0; i < part.blocks.count; ++i) AddLayer(part.blocks.first + i, weights.layers[i]);
    if (part.ends) AddEnd(weights);
    weights.step_bytes = step_bytes_;
  }

  const std::vector<Piece>& pieces() const { return pieces_; }
  int64_t bytes() const {
    int64_t bytes = 0;
    for (const Piece& piece : pieces_) bytes += piece.bytes();
    return bytes;
  }

 private:
  using Views = std::vector<const TensorView*>;

  void Add(const Bf16** place, int64_t elements, const Views& views, float spread, float centre) {
    Piece piece = {place, elements, {}, spread, centre};
    for (const TensorView* view : views) {
      if (view != nullptr) piece.from.push_back(*view);
    }
    pieces_.push_back(std::move(piece));
  }
  void AddMatrix(const Bf16** place, int64_t outputs, int64_t inputs, const Views& views) {
    // Keeps the magnitude of activations about the same from layer to layer.
    Add(place, outputs * inputs, views, static_cast<float>(1.7 / std::sqrt(static_cast<double>(inputs))), 0);
    step_bytes_ += outputs * inputs * 2;
  }
  void AddVector(const Bf16** place, int64_t elements, float centre, const Views& views) {
    Add(place, elements, views, 0, centre);
  }

  void AddEnd(DeviceWeights& to) {
    AddVector(&to.final_norm, config_.hidden, 1, {model_ ? &model_->final_norm() : nullptr});
    if (config_.tied_embeddings) {
      step_bytes_ += config_.vocab * config_.hidden * 2;
    } else {
      AddMatrix(&to.lm_head, config_.vocab, config_.hidden, {model_ ? &model_->lm_head() : nullptr});
    }
  }

  void AddLayer(int64_t index, DeviceLayer& to) {
    static const LayerWeights kNone;
    const LayerWeights& from = model_ != nullptr ? model_->layers()[index] : kNone;
    const int64_t hidden = config_.hidden, wide = config_.intermediate;
    const int64_t query = config_.heads * config_.head_dim, kv = config_.kv_heads * config_.head_dim;
    // Without a model there are no views, and no element is read.
    const auto views = [&](std::initializer_list<const TensorView*> all) {
      return model_ != nullptr ? Views(all) : Views();
    };
    AddVector(&to.input_norm, hidden, 1, views({&from.input_norm}));
    AddMatrix(&to.qkv, query + 2 * kv, hidden, views({&from.q, &from.k, &from.v}));
    if (config_.qkv_bias) {
      AddVector(&to.qkv_bias, query + 2 * kv, 0, views({&from.q_bias, &from.k_bias, &from.v_bias}));
    }
    if (config_.qk_norm) {
      AddVector(&to.q_norm, config_.head_dim, 1, views({&from.q_norm}));
      AddVector(&to.k_norm, config_.head_dim, 1, views({&from.k_norm}));
    }
    AddMatrix(&to.o, hidden, query, views({&from.o}));
    if (config_.output_bias) AddVector(&to.o_bias, hidden, 0, views({&from.o_bias}));
    AddVector(&to.post_attention_norm, hidden, 1, views({&from.post_attention_norm}));
    AddMatrix(&to.gate_up, 2 * wide, hidden, views({&from.gate, &from.up}));
    if (config_.mlp_bias) {
      AddVector(&to.gate_up_bias, 2 * wide, 0, views({&from.gate_bias, &from.up_bias}));
    }
    AddMatrix(&to.down, hidden, wide, views({&from.down}));
    if (config_.mlp_bias) AddVector(&to.down_bias, hidden, 0, views({&from.down_bias}));
  }

  const ModelConfig& config_;
  const Model* const model_;
  std::vector<Piece> pieces_;
  int64_t step_bytes_ = 0;
};

// Allocates memory for all pieces and sets their pointers.
absl::Status Place(const PieceList& list, DeviceOps& ops) {
  BFIO_ASSIGN_OR_RETURN(const auto memory, ops.Memory());
  const int64_t bytes = list.bytes();
  if (bytes > memory.free_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("the weights need %.2f GiB in bf16, but only %.2f of %.2f GiB are free on %s",
                        bytes / kGiB, memory.free_bytes / kGiB, memory.total_bytes / kGiB, ops.Describe()));
  }
  BFIO_ASSIGN_OR_RETURN(const auto block, ops.Allocate(bytes, "the weights"));
  auto* at = static_cast<std::byte*>(block);
  for (const Piece& piece : list.pieces()) {
    *piece.place = reinterpret_cast<const Bf16*>(at);
    at += piece.bytes();
  }
  return absl::OkStatus();
}

// Pinned memory in two halves: one is filled while the other is copied.
class Staging {
 public:
  static absl::StatusOr<Staging> Create(DeviceOps& ops) {
    BFIO_ASSIGN_OR_RETURN(const auto memory,
                          ops.AllocatePinned(2 * kStagingBytes, "the staging buffer of the weights"));
    return Staging(ops, static_cast<std::byte*>(memory));
  }

  absl::Status Send(const TensorView& tensor, Bf16* to) {
    const int64_t count = tensor.elements(), most = kStagingBytes / 2;
    for (int64_t first = 0; first < count; first += most) {
      const int64_t elements = std::min(most, count - first);
      std::byte* const half = memory_ + turn_ * kStagingBytes;
      Fill(tensor, first, elements, half);
      // Waits for the other half's copy.
      BFIO_RETURN_IF_ERROR(ops_.Wait(kCopyDeadline));
      BFIO_RETURN_IF_ERROR(ops_.CopyIn(to + first, half, elements * 2));
      turn_ = 1 - turn_;
    }
    return absl::OkStatus();
  }

 private:
  Staging(DeviceOps& ops, std::byte* memory) : ops_(ops), memory_(memory) {}

  static void Fill(const TensorView& tensor, int64_t first, int64_t elements, std::byte* to) {
    if (tensor.dtype == DType::kBF16) {
      std::memcpy(to, tensor.data + 2 * first, static_cast<size_t>(2 * elements));
      return;
    }
    auto* const halves = reinterpret_cast<uint16_t*>(to);
    for (int64_t i = 0; i < elements; ++i) halves[i] = worker::ToBf16(ElementAt(tensor, first + i));
  }

  DeviceOps& ops_;
  std::byte* const memory_;
  int turn_ = 0;
};

// *place, writable while the weights are made.
Bf16* Writable(const Piece& piece) {
  return const_cast<Bf16*>(*piece.place);
}

}  // namespace

absl::StatusOr<DeviceWeights> UploadWeights(const Model& model, DeviceOps& ops, const Progress& progress) {
  return UploadWeights(model, WholeModel(model.config().layers), ops, progress);
}

absl::StatusOr<DeviceWeights> UploadWeights(const Model& model, const ModelPart& part, DeviceOps& ops,
                                            const Progress& progress) {
  DeviceWeights weights;
  const PieceList list(model.config(), &model, part, weights);
  BFIO_RETURN_IF_ERROR(Place(list, ops));
  BFIO_ASSIGN_OR_RETURN(auto staging, Staging::Create(ops));
  const int64_t total = list.bytes();
  int64_t done = 0, told = 0;
  for (const Piece& piece : list.pieces()) {
    Bf16* to = Writable(piece);
    for (const TensorView& tensor : piece.from) {
      BFIO_RETURN_IF_ERROR(staging.Send(tensor, to));
      to += tensor.elements();
    }
    done += piece.bytes();
    if (done - told >= kProgressBytes) {
      progress(absl::StrFormat("weights: %.1f of %.1f GiB copied to the device", done / kGiB, total / kGiB));
      told = done;
    }
  }
  BFIO_RETURN_IF_ERROR(ops.Wait(kCopyDeadline));
  if (model.config().tied_embeddings) weights.lm_head = weights.embedding;
  return weights;
}

ModelBytes BytesOf(const ModelConfig& config) {
  const auto bytes = [&](const ModelPart& part) {
    DeviceWeights weights;
    return PieceList(config, nullptr, part, weights).bytes();
  };
  return {bytes({{0, 0}, true}), bytes({{0, 1}, false}),
          2 * config.kv_heads * config.head_dim * static_cast<int64_t>(sizeof(Bf16))};
}

absl::StatusOr<DeviceWeights> MakeRandomWeights(const ModelConfig& config, DeviceOps& ops) {
  DeviceWeights weights;
  const PieceList list(config, nullptr, WholeModel(config.layers), weights);
  BFIO_RETURN_IF_ERROR(Place(list, ops));
  uint64_t seed = 1;
  for (const Piece& piece : list.pieces()) {
    const char* const error =
        LaunchFillRandom(Writable(piece), piece.elements, seed, piece.spread, piece.centre, ops.stream());
    if (error != nullptr) return LaunchStatus(error, "FillRandom");
    seed += static_cast<uint64_t>(piece.elements);
  }
  BFIO_RETURN_IF_ERROR(ops.Wait(kCopyDeadline));
  if (config.tied_embeddings) weights.lm_head = weights.embedding;
  return weights;
}

}  // namespace bfio::worker::gpu
