// The engines of a process's ranks. Makes the engine that --engine names, one per rank; what ranks can share
// (a model's weights) is loaded once. Threads: none; used at the start.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/engine/cpu/cpu_engine.h"
#include "worker/engine/cuda/device/cuda_engine.h"
#include "worker/engine/engine.h"
#include "worker/engine/model/model.h"
#include "worker/engine/sim/sim_engine.h"

namespace bfio::worker {

struct EngineOptions {
  // "sim", "cpu" or "cuda".
  std::string name = "sim";
  EngineLimits limits = {.slots = 72, .kv_tokens = 1 << 20, .max_sequence_tokens = 1 << 18};
  // Without its limits.
  SimOptions sim;
  // Without its limits.
  CpuOptions cpu;
  // Without its limits and fit_kv; rank i of the process has GPU device + i.
  CudaOptions cuda;
  // Directory of a checkpoint, for the cpu and cuda engines.
  std::string model;
  // Type of the model's matrices in the cpu engine.
  cpu::Storage weights = cpu::Storage::kAuto;
  // Bound of the process's weights and KV caches; 0: the machine's memory. Used by the cpu engine and by
  // servers of chains.
  int64_t memory_limit_bytes = 0;
  // True: limits.kv_tokens is an upper bound, which the cpu and cuda engines lower to what fits in memory.
  bool fit_kv = false;
};

class Engines {
 public:
  // INVALID_ARGUMENT, naming the flag, when there is no such engine or it needs a model and has none; errors
  // of a checkpoint name --model, the file and the fault. FAILED_PRECONDITION or UNAVAILABLE: the cuda engine
  // in a build without CUDA, or on a machine without a GPU. RESOURCE_EXHAUSTED, with the missing amount:
  // weights and the KV caches of `ranks` ranks do not fit into memory.
  static absl::StatusOr<Engines> Create(const EngineOptions& options, int32_t ranks = 1);

  // `rank`: the rank's index within the process.
  absl::StatusOr<std::unique_ptr<Engine>> Make(int32_t rank) const;

  // Digest of the ranks' model (worker/engine/model/model_digest.h).
  const ModelDigest& digest() const { return digest_; }

 private:
  explicit Engines(const EngineOptions& options) : options_(options) {}

  EngineOptions options_;
  ModelDigest digest_;
  // Weights of the cpu engine, and of the cuda engine.
  std::shared_ptr<const cpu::Weights> weights_;
  std::shared_ptr<const Model> model_;
};

// The digest's input for an engine with these options and that model.
ModelDigest DigestOf(const EngineOptions& options, const Model& model);

// INVALID_ARGUMENT, naming the flag, when there is no such engine, or an option that it needs is missing.
absl::Status CheckEngineOptions(const EngineOptions& options);

}  // namespace bfio::worker
