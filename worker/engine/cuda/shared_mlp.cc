#include "worker/engine/cuda/shared_mlp.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "worker/engine/cuda/kernels/row_kernels.h"
#include "worker/engine/cuda/row_buckets.h"
#include "worker/engine/model/element.h"

namespace bfio::worker::gpu {
namespace {

// Bound on a hang of the device, for one layer's part.
constexpr absl::Duration kPartDeadline = absl::Seconds(60);
constexpr int64_t kNarrow = sizeof(Bf16), kWide = sizeof(float);

// Identifies a rank's part and the memory that it is computed in.
std::tuple<int32_t, int32_t, bool> PlaceOf(const StepPeers& peers) {
  return {peers.rank(), peers.world_size(), peers.on_device()};
}

}  // namespace

SharedMlp::SharedMlp(const ModelConfig& config, const DeviceWeights& weights, DeviceOps& ops)
    : config_(config),
      weights_(weights),
      ops_(ops),
      hidden_(config.hidden),
      input_(ops, GrowingMemory::Kind::kDevice, "the rows of a step of the group"),
      gathered_(ops, GrowingMemory::Kind::kDevice, "the rows of all ranks"),
      gates_(ops, GrowingMemory::Kind::kDevice, "activations of all ranks"),
      activated_(ops, GrowingMemory::Kind::kDevice, "activations of all ranks"),
      sums_(ops, GrowingMemory::Kind::kDevice, "sums for all ranks"),
      output_(ops, GrowingMemory::Kind::kDevice, "the sums of a step of the group"),
      host_rows_(ops, GrowingMemory::Kind::kPinned, "the rows of all ranks"),
      host_sums_(ops, GrowingMemory::Kind::kPinned, "sums for all ranks"),
      host_sum_(ops, GrowingMemory::Kind::kPinned, "the sums of a step of the group") {}

// --- memory ---

SharedMlp::Sizes SharedMlp::SizesOf(int64_t each, int64_t all, int64_t hidden, const MlpPart& part) {
  Sizes sizes;
  sizes.input = each * hidden * kNarrow;
  sizes.output = each * hidden * kWide;
  if (part.nodes.empty()) return sizes;
  sizes.gathered = all * hidden * kNarrow;
  sizes.sums = static_cast<int64_t>(part.nodes.size()) * all * hidden * kWide;
  sizes.gates = 2 * all * part.all.width() * kNarrow;
  sizes.activated = all * part.all.width() * kNarrow;
  return sizes;
}

int64_t SharedMlp::MostBytes(const ModelConfig& config, int32_t rows) {
  // Each array keeps the size of the largest group so far.
  Sizes most;
  for (int32_t ranks = 1; ranks <= kSumTerms; ++ranks) {
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const MlpPart part = PartOf(rank, ranks, config.intermediate, /*one_sum=*/false);
      const Sizes sizes = SizesOf(rows, PaddedRows(int64_t{ranks} * rows), config.hidden, part);
      for (int64_t Sizes::*const size : {&Sizes::input, &Sizes::gathered, &Sizes::gates, &Sizes::activated,
                                         &Sizes::sums, &Sizes::output}) {
        most.*size = std::max(most.*size, sizes.*size);
      }
    }
  }
  return most.input + most.gathered + most.gates + most.activated + most.sums + most.output;
}

// --- before steps ---

absl::Status SharedMlp::Enter(const StepPeers& peers) {
  if (place_ == PlaceOf(peers) && peers.rows() <= most_rows_) return absl::OkStatus();
  Cut(peers);
  most_rows_ = 0;
  SetRows(peers, peers.rows());
  BFIO_RETURN_IF_ERROR(Reserve());
  if (part_.all.width() > 0) {
    int32_t chosen = 0;
    for (int64_t rows = 1; rows <= peers.rows(); ++rows) {
      SetRows(peers, rows);
      if (padded_rows_ == chosen) continue;
      chosen = padded_rows_;
      BFIO_RETURN_IF_ERROR(Prepare());
    }
    // What CUDA loads at a kernel's first launch must not be loaded while a collective waits for its peers.
    SetRows(peers, 1);
    BFIO_RETURN_IF_ERROR(Activate(0));
  }
  BFIO_RETURN_IF_ERROR(ops_.Wait(kPartDeadline));
  most_rows_ = peers.rows();
  return absl::OkStatus();
}

void SharedMlp::SetRows(const StepPeers& peers, int64_t rows) {
  each_ = rows;
  all_rows_ = peers.world_size() * rows;
  padded_rows_ = PaddedRows(all_rows_);
}

absl::Status SharedMlp::Begin(int32_t rows, const StepPeers& peers) {
  if (place_ != PlaceOf(peers) || peers.rows() > most_rows_) {
    return absl::InternalError(absl::StrCat("a step of ", peers.rows(),
                                            " rows, but the group was set up for at most ", most_rows_,
                                            ", or not set up"));
  }
  rows_ = rows;
  SetRows(peers, peers.rows());
  if (!on_device_ || rows_ == each_) return absl::OkStatus();
  // Padding rows, which the collective transfers along with this rank's rows.
  return ops_.FillZero(input() + rows_ * hidden_, (each_ - rows_) * hidden_ * kNarrow);
}

void SharedMlp::Cut(const StepPeers& peers) {
  if (place_ == PlaceOf(peers)) return;
  place_ = PlaceOf(peers);
  on_device_ = peers.on_device();
  part_ = PartOf(peers.rank(), peers.world_size(), config_.intermediate, on_device_);
  gates_weights_.clear();
  ups_weights_.clear();
  nodes_.clear();
  for (const MlpColumns& columns : part_.nodes) nodes_.push_back({columns, {}});
  for (const DeviceLayer& layer : weights_.layers) {
    gates_weights_.push_back(layer.gate_up + part_.all.begin * hidden_);
    ups_weights_.push_back(layer.gate_up + (config_.intermediate + part_.all.begin) * hidden_);
    for (Node& node : nodes_) node.weights.push_back(layer.down + node.columns.begin);
  }
}

absl::Status SharedMlp::Reserve() {
  const absl::Status status = ReserveAll();
  if (status.ok()) return status;
  // What was allocated is being zeroed.
  BFIO_RETURN_IF_ERROR(ops_.Wait(kPartDeadline));
  for (GrowingMemory* memory :
       {&input_, &gathered_, &gates_, &activated_, &sums_, &output_, &host_rows_, &host_sums_, &host_sum_}) {
    BFIO_RETURN_IF_ERROR(memory->Free());
  }
  return status;
}

absl::Status SharedMlp::ReserveAll() {
  const int64_t all = padded_rows_;
  const Sizes sizes = SizesOf(each_, all, hidden_, part_);
  BFIO_RETURN_IF_ERROR(input_.Reserve(sizes.input));
  BFIO_RETURN_IF_ERROR(output_.Reserve(sizes.output));
  BFIO_RETURN_IF_ERROR(gathered_.Reserve(sizes.gathered));
  BFIO_RETURN_IF_ERROR(sums_.Reserve(sizes.sums));
  BFIO_RETURN_IF_ERROR(gates_.Reserve(sizes.gates));
  BFIO_RETURN_IF_ERROR(activated_.Reserve(sizes.activated));
  if (on_device_) return absl::OkStatus();
  BFIO_RETURN_IF_ERROR(host_rows_.Reserve(all * hidden_ * kNarrow));
  BFIO_RETURN_IF_ERROR(host_sums_.Reserve(sizes.sums));
  BFIO_RETURN_IF_ERROR(host_sum_.Reserve(each_ * hidden_ * kWide));
  if (mine_.size() < static_cast<size_t>(each_ * hidden_)) mine_.resize(each_ * hidden_);
  if (all_.size() < static_cast<size_t>(all_rows_ * hidden_)) all_.resize(all_rows_ * hidden_);
  return absl::OkStatus();
}

GemmShape SharedMlp::WideShape() const {
  const int32_t width = part_.all.width();
  return {padded_rows_, static_cast<int32_t>(hidden_), width, false, 0, 0, 2 * width};
}

GemmShape SharedMlp::NarrowShape(const Node& node) const {
  return {padded_rows_,
          node.columns.width(),
          static_cast<int32_t>(hidden_),
          true,
          part_.all.width(),
          static_cast<int32_t>(config_.intermediate),
          0};
}

absl::Status SharedMlp::Prepare() {
  std::vector<const Bf16*> wide = gates_weights_;
  wide.insert(wide.end(), ups_weights_.begin(), ups_weights_.end());
  BFIO_RETURN_IF_ERROR(ops_.Prepare(WideShape(), wide, gathered_.as<Bf16>(), gates_.as<Bf16>()));
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].columns.width() == 0) continue;
    BFIO_RETURN_IF_ERROR(
        ops_.Prepare(NarrowShape(nodes_[i]), nodes_[i].weights, activated_.as<Bf16>(), sums(i)));
  }
  return absl::OkStatus();
}

// --- a layer ---

absl::Status SharedMlp::Run(int64_t layer, StepPeers& peers) {
  if (on_device_) return RunOnDevice(layer, peers);
  BFIO_RETURN_IF_ERROR(Gather(peers));
  BFIO_RETURN_IF_ERROR(Compute(layer));
  return Scatter(peers);
}

absl::Status SharedMlp::RunOnDevice(int64_t layer, StepPeers& peers) {
  const int64_t count = each_ * hidden_;
  BFIO_RETURN_IF_ERROR(peers.QueueAllGather(input(), gathered_.as<Bf16>(), count, ops_.stream()));
  BFIO_RETURN_IF_ERROR(Compute(layer));
  return peers.QueueReduceScatter(sums(0), output_.as<float>(), count, ops_.stream());
}

absl::Status SharedMlp::Gather(StepPeers& peers) {
  const int64_t mine = rows_ * hidden_, all = all_rows_ * hidden_;
  Bf16* const rows = host_rows_.as<Bf16>();
  if (mine > 0) {
    BFIO_RETURN_IF_ERROR(ops_.CopyOut(rows, input(), mine * kNarrow));
    BFIO_RETURN_IF_ERROR(ops_.Wait(kPartDeadline));
  }
  for (int64_t i = 0; i < mine; ++i) mine_[i] = FromBf16(rows[i].bits);
  std::fill(mine_.begin() + mine, mine_.begin() + each_ * hidden_, 0.0f);
  const auto gathered = absl::MakeSpan(all_).subspan(0, static_cast<size_t>(all));
  BFIO_RETURN_IF_ERROR(
      peers.AllGather(absl::MakeConstSpan(mine_).subspan(0, static_cast<size_t>(each_ * hidden_)), gathered));
  if (part_.all.width() == 0) return absl::OkStatus();
  for (int64_t i = 0; i < all; ++i) rows[i] = {worker::ToBf16(gathered[i])};
  return ops_.CopyIn(gathered_.as<Bf16>(), rows, all * kNarrow);
}

absl::Status SharedMlp::Activate(int64_t layer) {
  const DeviceLayer& w = weights_.layers[layer];
  SiluArgs args;
  args.gate_up = gates_.as<Bf16>();
  if (w.gate_up_bias != nullptr) {
    args.gate_bias = w.gate_up_bias + part_.all.begin;
    args.up_bias = args.gate_bias + config_.intermediate;
  }
  args.width = part_.all.width();
  args.out = activated_.as<Bf16>();
  args.grid_rows = static_cast<int32_t>(all_rows_);
  return LaunchStatus(LaunchSilu(args, ops_.stream()), "Silu");
}

absl::Status SharedMlp::Compute(int64_t layer) {
  if (part_.all.width() > 0) {
    const GemmShape wide = WideShape();
    Bf16* const gates = gates_.as<Bf16>();
    BFIO_RETURN_IF_ERROR(ops_.Multiply(wide, gathered_.as<Bf16>(), gates_weights_[layer], gates));
    BFIO_RETURN_IF_ERROR(
        ops_.Multiply(wide, gathered_.as<Bf16>(), ups_weights_[layer], gates + part_.all.width()));
    BFIO_RETURN_IF_ERROR(Activate(layer));
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (node.columns.width() == 0) {
      BFIO_RETURN_IF_ERROR(ops_.FillZero(sums(i), all_rows_ * hidden_ * kWide));
      continue;
    }
    const Bf16* const x = activated_.as<Bf16>() + (node.columns.begin - part_.all.begin);
    BFIO_RETURN_IF_ERROR(ops_.Multiply(NarrowShape(node), x, node.weights[layer], sums(i)));
  }
  return absl::OkStatus();
}

absl::Status SharedMlp::Scatter(StepPeers& peers) {
  const int64_t brought = static_cast<int64_t>(nodes_.size()) * all_rows_ * hidden_;
  float* const sums_on_host = host_sums_.as<float>();
  if (brought > 0) {
    BFIO_RETURN_IF_ERROR(ops_.CopyOut(sums_on_host, sums(0), brought * kWide));
    BFIO_RETURN_IF_ERROR(ops_.Wait(kPartDeadline));
  }
  float* const sum = host_sum_.as<float>();
  BFIO_RETURN_IF_ERROR(peers.ReduceScatter(absl::MakeConstSpan(sums_on_host, static_cast<size_t>(brought)),
                                           absl::MakeSpan(sum, static_cast<size_t>(each_ * hidden_))));
  if (rows_ == 0) return absl::OkStatus();
  return ops_.CopyIn(output_.as<float>(), sum, rows_ * hidden_ * kWide);
}

}  // namespace bfio::worker::gpu
