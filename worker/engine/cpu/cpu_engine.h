// The CPU engine: runs a Llama-family model on a machine without a GPU. The backend of a DecodeEngine that
// uses Forward, and the functions that assemble both. Threads: as engine.h describes. Each engine has its own
// thread team, so a process has ranks x threads of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/engine/cpu/forward.h"
#include "worker/engine/cpu/sample_team.h"
#include "worker/engine/cpu/weights.h"
#include "worker/engine/decode/decode_engine.h"
#include "worker/engine/decode/part_backend.h"

namespace bfio::worker {

struct CpuOptions {
  // page_tokens must be a multiple of 16.
  DecodeOptions decode;
  // Threads of the team, in 1..256.
  int32_t threads = 1;
  // Null: the best kernels that this processor can run.
  const cpu::Kernels* kernels = nullptr;
};

// INVALID_ARGUMENT, naming the option, when one is out of range.
absl::Status CheckCpuOptions(const CpuOptions& options);

ModelFacts FactsOf(const ModelConfig& config);

// Digest of everything that workers must have in common for a request to continue on another worker with the
// same tokens. Page size, threads and step size change no token. The processor's kernels may change one by
// rounding, which the digest does not cover.
ModelDigest DigestOf(cpu::Storage weights, const Model& model);

// Loads a checkpoint that several engines may share. Errors: model.h's.
absl::StatusOr<std::shared_ptr<const cpu::Weights>> LoadCpuWeights(const std::string& directory,
                                                                   cpu::Storage storage);

// INVALID_ARGUMENT when an option is out of range; RESOURCE_EXHAUSTED when the KV cache is larger than the
// address space.
absl::StatusOr<std::unique_ptr<DecodeEngine>> MakeCpuEngine(const CpuOptions& options,
                                                            std::shared_ptr<const cpu::Weights> weights);

class CpuBackend final : public PartBackend {
 public:
  static absl::StatusOr<std::unique_ptr<CpuBackend>> Create(const CpuOptions& options,
                                                            std::shared_ptr<const cpu::Weights> weights);
  // REQUIRES: the weights contain these blocks.
  static absl::StatusOr<std::unique_ptr<CpuBackend>> Create(const CpuOptions& options,
                                                            std::shared_ptr<const cpu::Weights> weights,
                                                            const BlockRange& blocks);

  absl::string_view name() const override { return "cpu"; }
  const ModelFacts& facts() const override { return facts_; }
  absl::Status Run(const StepPlan& plan, absl::Span<const Draw> draws, absl::Span<Drawn> drawn) override;

  int64_t hidden() const override { return forward_.weights().config().hidden; }
  absl::StatusOr<absl::Span<const float>> RunHead(const StepPlan& plan) override;
  absl::StatusOr<absl::Span<const float>> RunBlocks(const StepPlan& plan,
                                                    absl::Span<const float> hidden) override;
  absl::Status DrawFrom(absl::Span<const float> hidden, absl::Span<const Draw> draws,
                        absl::Span<Drawn> drawn) override;

 private:
  CpuBackend(const CpuOptions& options, std::shared_ptr<const cpu::Weights> weights, const BlockRange& blocks,
             std::unique_ptr<cpu::KvCache> cache);

  ModelFacts facts_;
  cpu::Forward forward_;
  cpu::SampleTeam samplers_;
};

// The parts of chains on a server with the CPU engine (part_backend.h). All parts that a server hosts at the
// same time share one copy of the weights. Threads: used by one thread.
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
