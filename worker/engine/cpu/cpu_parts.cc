#include "worker/engine/cpu/cpu_parts.h"

#include <utility>

#include "worker/engine/cpu/part_memory.h"

namespace bfio::worker {

CpuParts::CpuParts(std::shared_ptr<const Model> model, cpu::Storage weights, const CpuOptions& options)
    : model_(std::move(model)),
      storage_(weights),
      options_(options),
      bytes_(cpu::BytesOf(*model_, storage_)) {}

absl::StatusOr<std::unique_ptr<PartBackend>> CpuParts::Make(const DecodeOptions& options,
                                                            const ModelPart& hosted,
                                                            const BlockRange& blocks) {
  CpuOptions cpu = options_;
  cpu.decode = options;
  std::shared_ptr<const cpu::Weights> weights = weights_.lock();
  if (weights == nullptr || weights->part() != hosted) {
    weights = cpu::Weights::Make(model_, storage_, hosted);
    weights_ = weights;
  }
  return CpuBackend::Create(cpu, std::move(weights), blocks);
}

}  // namespace bfio::worker
