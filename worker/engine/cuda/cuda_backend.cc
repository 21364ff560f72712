#include "worker/engine/cuda/cuda_backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "worker/engine/decode/kv_fit.h"

namespace bfio::worker::gpu {
namespace {

// Bound on a hang of the device: the longest step takes a fraction of a second.
constexpr absl::Duration kStepDeadline = absl::Seconds(60);
// Share of a device's memory that is left free, and an upper bound of it: for captured graphs, kernels that
// are loaded at first use, and the barrier's communicator. An estimate.
constexpr int64_t kReserveShare = 32, kMostReserve = int64_t{2} << 30;

int32_t MaxRowsOf(const DecodeOptions& options) {
  return static_cast<int32_t>(MaxRows(options.limits.slots, options.step_tokens));
}

AttentionLimits LimitsOf(const DecodeOptions& options, const AttentionGrid& grid) {
  const int64_t pages = PageTable::PageLimit(PageTableOptionsOf(options));
  return {MaxRowsOf(options), options.limits.slots, pages * options.page_tokens, grid.long_blocks};
}

StepLimits StepLimitsOf(const DecodeOptions& options, const AttentionSizes& sizes) {
  return {MaxRowsOf(options), options.limits.slots, PageTable::PageLimit(PageTableOptionsOf(options)), sizes};
}

ForwardOptions ForwardOptionsOf(const DecodeOptions& options, const AttentionGrid& grid) {
  ForwardOptions forward;
  forward.max_rows = MaxRowsOf(options);
  forward.max_draws = options.limits.slots;
  forward.page_tokens = options.page_tokens;
  forward.pages = PageTable::PageLimit(PageTableOptionsOf(options));
  forward.attention_grid = grid;
  return forward;
}

}  // namespace

absl::Status CudaBackend::Check(const DecodeOptions& options, const ModelConfig& config, DeviceOps& ops) {
  absl::Status status = CheckDecodeOptions(options);
  if (status.ok()) status = CheckAttentionShape(ShapeOf(config, options.page_tokens));
  return status.ok() ? ops.FullAttentionGrid(static_cast<int32_t>(config.head_dim)).status() : status;
}

absl::StatusOr<int64_t> CudaBackend::FitKv(const DecodeOptions& options, const ModelConfig& config,
                                           const DeviceWeights& weights, DeviceOps& ops, bool fewer) {
  BFIO_ASSIGN_OR_RETURN(const auto grid, ops.FullAttentionGrid(static_cast<int32_t>(config.head_dim)));
  BFIO_ASSIGN_OR_RETURN(const auto memory, ops.Memory());
  const int64_t reserve = std::min(memory.total_bytes / kReserveShare, kMostReserve);
  const int64_t asked = options.limits.kv_tokens, capacity = memory.free_bytes - reserve;
  const auto bytes = [&](int64_t tokens) {
    DecodeOptions sized = options;
    sized.limits.kv_tokens = tokens;
    const AttentionSizes sizes = SizesFor(ShapeOf(config, options.page_tokens), LimitsOf(sized, grid));
    return StepLayout(StepLimitsOf(sized, sizes)).bytes() +
           Forward::BytesOf(config, weights, ForwardOptionsOf(sized, grid), sizes);
  };
  if (const auto fits = FitKvTokens(options, fewer, capacity, bytes)) return *fits;
  return absl::ResourceExhaustedError(absl::StrFormat(
      "--kv_tokens=%d needs %.2f GiB including activations, but %.2f of %.2f GiB are free on %s beside the "
      "weights, and %.2f GiB of these are reserved for graphs and the barrier: %s",
      asked, bytes(asked) / kGiB, memory.free_bytes / kGiB, memory.total_bytes / kGiB, ops.Describe(),
      reserve / kGiB,
      fewer ? absl::StrCat("the memory does not suffice for one page for each of the ", options.limits.slots,
                           " --slots")
            : absl::StrCat("at most ", MostKvTokens(asked, capacity, bytes), " tokens fit")));
}

absl::StatusOr<std::unique_ptr<CudaBackend>> CudaBackend::Create(const DecodeOptions& options,
                                                                 const ModelConfig& config,
                                                                 std::unique_ptr<DeviceOps> ops,
                                                                 DeviceWeights weights,
                                                                 const Progress& progress) {
  BFIO_RETURN_IF_ERROR(Check(options, config, *ops));
  if (auto fits = FitKv(options, config, weights, *ops, /*fewer=*/false); !fits.ok()) return fits.status();
  BFIO_ASSIGN_OR_RETURN(const auto grid, ops->FullAttentionGrid(static_cast<int32_t>(config.head_dim)));
  auto backend = std::unique_ptr<CudaBackend>(
      new CudaBackend(options, config, grid, std::move(ops), std::move(weights)));
  if (absl::Status status = backend->Start(progress); !status.ok()) {
    backend->broken_ = status;
    return status;
  }
  return backend;
}

CudaBackend::CudaBackend(const DecodeOptions& options, const ModelConfig& config, const AttentionGrid& grid,
                         std::unique_ptr<DeviceOps> ops, DeviceWeights weights)
    : options_(options),
      config_(config),
      weights_(std::move(weights)),
      ops_(std::move(ops)),
      grid_(grid),
      limits_(LimitsOf(options, grid)),
      shape_(ShapeOf(config, options.page_tokens)),
      sizes_(SizesFor(shape_, limits_)),
      attention_(shape_, limits_),
      draw_buckets_(options.limits.slots),
      row_buckets_(MaxRowsOf(options)),
      layout_(StepLimitsOf(options, sizes_)) {
  facts_.vocab = config.vocab;
  facts_.max_positions = config.max_positions;
  facts_.eos_token_ids.assign(config.eos_token_ids.begin(), config.eos_token_ids.end());
}

CudaBackend::~CudaBackend() {
  // If the device hangs, queued work may still read the weights, and freeing them would block forever: leak
  // them.
  if (absl::IsDeadlineExceeded(broken_)) new std::shared_ptr<DeviceOps>(weights_.memory);
}

bool CudaBackend::whole() const {
  return weights_.embedding != nullptr && static_cast<int64_t>(weights_.layers.size()) == config_.layers;
}

absl::Status CudaBackend::Allocate() {
  const auto allocate = [&](auto& pointer, absl::StatusOr<void*> memory) {
    if (memory.ok()) pointer = static_cast<std::remove_reference_t<decltype(pointer)>>(*memory);
    return memory.status();
  };
  absl::Status status = allocate(inputs_, ops_->Allocate(layout_.bytes(), "a step's inputs"));
  if (status.ok()) status = allocate(staged_, ops_->AllocatePinned(layout_.bytes(), "a step's inputs"));
  const auto result_bytes = static_cast<int64_t>(options_.limits.slots * sizeof(DrawResult));
  if (status.ok()) status = allocate(results_, ops_->AllocatePinned(result_bytes, "a step's tokens"));
  const auto top_bytes = static_cast<int64_t>(options_.limits.slots * kMaxTop * sizeof(TopResult));
  if (status.ok()) status = allocate(tops_, ops_->AllocatePinned(top_bytes, "log-probabilities"));
  if (status.ok() && !whole()) {
    const auto bytes = static_cast<int64_t>(limits_.rows * config_.hidden * sizeof(float));
    status = allocate(hidden_, ops_->AllocatePinned(bytes, "hidden rows"));
  }
  // Zero inputs mean no rows, while products are chosen.
  if (status.ok()) status = ops_->FillZero(inputs_, layout_.bytes());
  return status;
}

absl::Status CudaBackend::Start(const Progress& progress) {
  BFIO_RETURN_IF_ERROR(Allocate());
  BFIO_ASSIGN_OR_RETURN(forward_,
                        Forward::Create(config_, weights_, ForwardOptionsOf(options_, grid_), sizes_, *ops_));
  for (const int32_t draws : draw_buckets_.sizes()) {
    BFIO_ASSIGN_OR_RETURN(auto recorded, RecordBucket({draws, draws, false}));
    decodes_.push_back(recorded);
    if (whole() || weights_.embedding == nullptr) continue;
    BFIO_ASSIGN_OR_RETURN(const auto drawing, RecordDraws(draws));
    draws_.push_back(drawing);
  }
  for (const int32_t rows : row_buckets_.sizes()) {
    const int32_t most = std::min(rows, options_.limits.slots);
    BFIO_ASSIGN_OR_RETURN(auto recorded,
                          RecordBucket({rows, draw_buckets_.sizes()[draw_buckets_.Index(most)], true}));
    prompts_.push_back(recorded);
  }
  BFIO_ASSIGN_OR_RETURN(const auto left, ops_->Memory());
  progress(absl::StrFormat(
      "%s: GEMM algorithms chosen and CUDA graphs recorded for %d + %d batch sizes; %d KV tokens, %.2f GiB "
      "free",
      ops_->Describe(), draw_buckets_.count(), row_buckets_.count(), options_.limits.kv_tokens,
      left.free_bytes / kGiB));
  return absl::OkStatus();
}

absl::StatusOr<CudaBackend::Recorded> CudaBackend::RecordBucket(const StepBucket& bucket) {
  BFIO_RETURN_IF_ERROR(forward_->Prepare(bucket));
  const StepInputs inputs = layout_.At(inputs_);
  const auto enqueue = [=, this] {
    return whole() ? forward_->Enqueue(bucket, inputs) : forward_->EnqueueBlocks(bucket, inputs);
  };
  // Run once without recording: what CUDA loads at a kernel's first launch must not be loaded during a
  // recording.
  BFIO_RETURN_IF_ERROR(enqueue());
  BFIO_RETURN_IF_ERROR(ops_->Wait(kStepDeadline));
  BFIO_ASSIGN_OR_RETURN(const auto step, ops_->Record(enqueue));
  return Recorded{bucket, step};
}

absl::StatusOr<int> CudaBackend::RecordDraws(int32_t draws) {
  const StepInputs inputs = layout_.At(inputs_);
  const auto enqueue = [=, this] { return forward_->EnqueueDraws({draws, draws, false}, inputs); };
  BFIO_RETURN_IF_ERROR(enqueue());
  BFIO_RETURN_IF_ERROR(ops_->Wait(kStepDeadline));
  return ops_->Record(enqueue);
}

const CudaBackend::Recorded& CudaBackend::Choose(const StepPlan& plan) const {
  const bool prompts = attention_.counts().long_items > 0 || plan.draws() != plan.rows();
  return prompts ? prompts_[row_buckets_.Index(plan.rows())] : decodes_[draw_buckets_.Index(plan.rows())];
}

absl::Status CudaBackend::Run(const StepPlan& plan, absl::Span<const Draw> draws, absl::Span<Drawn> drawn) {
  if (!broken_.ok()) return broken_;
  if (plan.rows() == 0) return absl::OkStatus();
  broken_ = RunStep(plan, draws, drawn);
  return broken_;
}

absl::StatusOr<absl::Span<const float>> CudaBackend::RunHead(const StepPlan& plan) {
  if (broken_.ok()) broken_ = RunPart(plan);
  if (!broken_.ok()) return broken_;
  return absl::MakeConstSpan(hidden_, static_cast<size_t>(plan.rows() * config_.hidden));
}

absl::StatusOr<absl::Span<const float>> CudaBackend::RunBlocks(const StepPlan& plan,
                                                               absl::Span<const float> hidden) {
  if (broken_.ok()) broken_ = CopyHidden(hidden);
  return RunHead(plan);
}

absl::Status CudaBackend::DrawFrom(absl::Span<const float> hidden, absl::Span<const Draw> draws,
                                   absl::Span<Drawn> drawn) {
  if (!broken_.ok()) return broken_;
  if (draws.empty()) return absl::OkStatus();
  broken_ = RunDraws(hidden, draws, drawn);
  return broken_;
}

absl::Status CudaBackend::CopyHidden(absl::Span<const float> hidden) {
  const size_t bytes = hidden.size() * sizeof(float);
  std::memcpy(hidden_, hidden.data(), bytes);
  return ops_->CopyIn(forward_->residual(), hidden_, static_cast<int64_t>(bytes));
}

absl::Status CudaBackend::Queue(const StepPlan& plan, absl::Span<const Draw> draws) {
  BFIO_RETURN_IF_ERROR(attention_.Build(plan));
  const int64_t bytes =
      FillStepInputs(plan, attention_, draws, config_.vocab, options_.page_tokens, layout_, staged_);
  BFIO_RETURN_IF_ERROR(ops_->CopyIn(inputs_, staged_, bytes));
  last_ = &Choose(plan);
  return ops_->Replay(last_->step);
}

absl::Status CudaBackend::RunPart(const StepPlan& plan) {
  absl::Status status = Queue(plan, {});
  const auto bytes = static_cast<int64_t>(plan.rows() * config_.hidden * sizeof(float));
  if (status.ok()) status = ops_->CopyOut(hidden_, forward_->residual(), bytes);
  if (status.ok()) status = ops_->Wait(kStepDeadline);
  return status;
}

absl::Status CudaBackend::RunDraws(absl::Span<const float> hidden, absl::Span<const Draw> draws,
                                   absl::Span<Drawn> drawn) {
  const int64_t bytes = FillDrawInputs(draws, config_.vocab, layout_, staged_);
  absl::Status status = CopyHidden(hidden);
  if (status.ok()) status = ops_->CopyIn(inputs_, staged_, bytes);
  if (status.ok()) {
    status =
        ops_->Replay(draws_[static_cast<size_t>(draw_buckets_.Index(static_cast<int32_t>(draws.size())))]);
  }
  return status.ok() ? TakeDrawn(draws, drawn) : status;
}

absl::Status CudaBackend::RunStep(const StepPlan& plan, absl::Span<const Draw> draws,
                                  absl::Span<Drawn> drawn) {
  absl::Status status = Queue(plan, draws);
  return status.ok() ? TakeDrawn(draws, drawn) : status;
}

absl::Status CudaBackend::TakeDrawn(absl::Span<const Draw> draws, absl::Span<Drawn> drawn) {
  absl::Status status;
  const auto result_bytes = static_cast<int64_t>(drawn.size() * sizeof(DrawResult));
  if (result_bytes > 0) status = ops_->CopyOut(results_, forward_->results(), result_bytes);
  const bool tops = std::any_of(draws.begin(), draws.end(),
                                [](const Draw& draw) { return draw.sampling.logprobs.value_or(0) > 0; });
  if (status.ok() && tops) {
    status = ops_->CopyOut(tops_, forward_->tops(),
                           static_cast<int64_t>(drawn.size() * kMaxTop * sizeof(TopResult)));
  }
  if (status.ok()) status = ops_->Wait(kStepDeadline);
  if (!status.ok()) return status;
  for (size_t i = 0; i < drawn.size(); ++i) {
    const DrawResult& result = results_[i];
    drawn[i] = {result.finite != 0, result.id, result.log_probability, result.end_probability, {}};
    const TopResult* top = tops_ + i * kMaxTop;
    for (int32_t n = 0; n < draws[i].sampling.logprobs.value_or(0); ++n)
      drawn[i].top.push_back({top[n].id, top[n].log_probability});
  }
  return absl::OkStatus();
}

absl::StatusOr<CudaBackend::StepTime> CudaBackend::TimeLastStep() {
  if (last_ == nullptr) return absl::FailedPreconditionError("no step was run");
  const StepInputs inputs = layout_.At(inputs_);
  const auto enqueue = [=, this] { return forward_->EnqueueAttention(last_->bucket, inputs); };
  BFIO_ASSIGN_OR_RETURN(const auto attention, ops_->Record(enqueue));
  BFIO_ASSIGN_OR_RETURN(const auto step_s, ops_->Time(last_->step));
  BFIO_ASSIGN_OR_RETURN(const auto attention_s, ops_->Time(attention));
  return StepTime{step_s, attention_s};
}

}  // namespace bfio::worker::gpu
