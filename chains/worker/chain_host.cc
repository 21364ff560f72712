#include "chains/worker/chain_host.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "chains/pipeline/chain_backend.h"
#include "common/base/saturate.h"
#include "common/base/spdlog.h"
#include "worker/kv/page_table.h"

namespace bfio::worker {
namespace {

BlockRange RangeOf(uint32_t first, uint32_t end) {
  return {static_cast<int32_t>(first), static_cast<int32_t>(end - first)};
}

}  // namespace

ChainHost::ChainHost(Setup setup) : setup_(std::move(setup)) {}

ChainHost::~ChainHost() {
  while (!parts_.empty()) Drop(parts_.begin()->first);
}

DecodeOptions ChainHost::DecodeOf(const v1::ChainStage& stage) const {
  DecodeOptions decode = setup_.options.engine.cpu.decode;
  decode.limits.slots = static_cast<int32_t>(stage.slots());
  decode.limits.kv_tokens = static_cast<int64_t>(stage.kv_tokens());
  decode.limits.max_sequence_tokens = static_cast<int64_t>(stage.max_sequence_tokens());
  return decode;
}

std::function<void(const absl::Status&)> ChainHost::Broken(uint64_t chain) const {
  return [on_broken = setup_.on_broken, chain](const absl::Status& why) { on_broken(chain, why); };
}

absl::Status ChainHost::Load(const v1::ChainStage& stage) {
  Drop(stage.chain());
  auto part = Make(stage);
  if (!part.ok()) return part.status();
  Inlet* const inlet =
      stage.stage() == 0 ? static_cast<Inlet*>((*part)->returns.get()) : (*part)->stage.get();
  setup_.service->Register(stage.chain(), stage.stage(), inlet);
  parts_[stage.chain()] = *std::move(part);
  spdlog::info("chain {}: stage {} of {}, blocks {} to {}", stage.chain(), stage.stage(), stage.stages(),
               stage.first_block(), int64_t{stage.end_block()} - 1);
  return absl::OkStatus();
}

absl::Status ChainHost::CheckMemory(const ModelPart& hosted, int64_t kv_bytes) const {
  int64_t others = 0;
  for (const auto& [chain, part] : parts_) {
    others = SaturatedSum(others, part->kv_bytes);
    if (part->hosted != hosted) {
      return absl::FailedPreconditionError(
          absl::StrCat("chain ", chain, " on this server hosts other blocks"));
    }
  }
  return CheckFits(setup_.source->bytes(), hosted, SaturatedSum(others, kv_bytes),
                   setup_.options.engine.memory_limit_bytes);
}

absl::StatusOr<std::unique_ptr<ChainHost::Part>> ChainHost::Make(const v1::ChainStage& stage) const {
  const ModelConfig& config = setup_.config;
  const bool head = stage.stage() == 0, last = stage.stage() + 1 == stage.stages();
  const auto layers = static_cast<uint64_t>(config.layers);
  if (stage.stage() >= stage.stages() || stage.first_block() >= stage.end_block() ||
      stage.hosted_first() > stage.first_block() || stage.end_block() > stage.hosted_end() ||
      stage.hosted_end() > layers || head != (stage.first_block() == 0) ||
      last != (stage.end_block() == layers)) {
    return absl::InvalidArgumentError(absl::StrCat("invalid stage: ", stage.stage(), " of ", stage.stages(),
                                                   " with blocks ", stage.first_block(), " to ",
                                                   stage.end_block(), " out of ", stage.hosted_first(),
                                                   " to ", stage.hosted_end(), " of ", layers));
  }
  const BlockRange blocks = RangeOf(stage.first_block(), stage.end_block());
  const ModelPart hosted = {RangeOf(stage.hosted_first(), stage.hosted_end()), stage.hosted_first() == 0};
  const DecodeOptions decode = DecodeOf(stage);
  if (absl::Status status = CheckDecodeOptions(decode); !status.ok()) return status;
  const BatchBounds bounds = BoundsOf(config.hidden, decode);
  auto part = std::make_unique<Part>();
  part->spec = stage;
  part->hosted = hosted;
  part->kv_bytes = SaturatedProduct(
      {setup_.source->bytes().kv_token, bounds.page_tokens, bounds.pages, int64_t{blocks.count}});
  if (absl::Status status = CheckMemory(hosted, part->kv_bytes); !status.ok()) return status;
  auto backend = setup_.source->Make(decode, hosted, blocks);
  if (!backend.ok()) return backend.status();
  part->backend = *std::move(backend);
  const PassTarget target = {stage.successor(), stage.chain(), last ? 0 : stage.stage() + 1};
  if (!(head && last)) {
    part->own_outlet = std::make_unique<PassOutlet>(target, setup_.credentials, Broken(stage.chain()));
    part->outlet = part->own_outlet.get();
  }
  if (head) {
    part->returns = std::make_shared<Returns>(Broken(stage.chain()));
  } else {
    part->stage = std::make_unique<Stage>(std::move(part->backend), bounds, last, std::move(part->own_outlet),
                                          Broken(stage.chain()));
  }
  return part;
}

absl::Status ChainHost::Start(uint64_t chain) {
  const auto found = parts_.find(chain);
  if (found == parts_.end())
    return absl::NotFoundError(absl::StrCat("chain ", chain, " is not on this server"));
  Part& part = *found->second;
  if (part.outlet != nullptr) part.outlet->Open();
  return part.spec.stage() == 0 ? StartHead(part) : absl::OkStatus();
}

absl::Status ChainHost::StartHead(Part& part) {
  if (part.backend == nullptr) return absl::FailedPreconditionError("the chain has already started");
  std::unique_ptr<Backend> backend;
  if (part.outlet == nullptr) {
    backend = std::move(part.backend);
  } else {
    ChainBackendOptions options;
    options.micro_batches = setup_.pipeline.micro_batches;
    options.max_rows = BoundsOf(setup_.config.hidden, DecodeOf(part.spec)).max_rows;
    options.timeout = absl::Milliseconds(part.spec.timeout_ms());
    backend = std::make_unique<ChainBackend>(options, std::move(part.backend), std::move(part.own_outlet),
                                             part.returns);
  }
  auto engine = DecodeEngine::Create(DecodeOf(part.spec), std::move(backend));
  if (!engine.ok()) return engine.status();
  const uint64_t chain = part.spec.chain();
  auto rank = setup_.make_rank(part.spec, *std::move(engine));
  if (!rank.ok()) return rank.status();
  part.rank = *std::move(rank);
  part.rank->Start([this, chain](const absl::Status& status) {
    setup_.on_broken(chain, absl::UnavailableError(absl::StrCat("the rank of the chain's head has ended: ",
                                                                status.ok() ? "drained" : status.message())));
  });
  return absl::OkStatus();
}

void ChainHost::Drop(uint64_t chain) {
  const auto found = parts_.find(chain);
  if (found == parts_.end()) return;
  const std::unique_ptr<Part> part = std::move(found->second);
  parts_.erase(found);
  // Wakes a step that waits for its results.
  if (part->returns != nullptr) part->returns->OnLost(absl::UnavailableError("the chain was dropped"));
  part->rank.reset();
  setup_.service->Unregister(chain);
}

bool ChainHost::Leave(const std::string& reason) {
  bool any = false;
  for (const auto& [chain, part] : parts_) {
    if (part->rank == nullptr) continue;
    part->rank->Leave(reason);
    any = true;
  }
  return any;
}

bool ChainHost::HasHeads() const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [](const auto& part) { return part.second->rank != nullptr; });
}

std::vector<v1::ChainStage> ChainHost::stages() const {
  std::vector<v1::ChainStage> stages;
  for (const auto& [chain, part] : parts_) stages.push_back(part->spec);
  return stages;
}

}  // namespace bfio::worker
