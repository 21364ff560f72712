// The parts of chains on a server with the CPU engine (part_backend.h). All parts that a server hosts at the
// same time share one copy of the weights. Threads: used by one thread.
#pragma once

#include <memory>

#include "worker/engine/cpu/cpu_engine.h"
#include "worker/engine/decode/part_backend.h"

namespace bfio::worker {

class CpuParts final : public PartSource {
 public:
  // `options` without the fields that Make receives.
  CpuParts(std::shared_ptr<const Model> model, cpu::Storage weights, const CpuOptions& options);

  const ModelBytes& bytes() const override { return bytes_; }
  absl::StatusOr<std::unique_ptr<PartBackend>> Make(const DecodeOptions& options, const ModelPart& hosted,
                                                    const BlockRange& blocks) override;

 private:
  const std::shared_ptr<const Model> model_;
  const cpu::Storage storage_;
  const CpuOptions options_;
  const ModelBytes bytes_;
  // Expires when no part uses the weights.
  std::weak_ptr<const cpu::Weights> weights_;
};

}  // namespace bfio::worker
