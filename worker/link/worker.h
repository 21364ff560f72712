// A worker process: its ranks, from start to clean end. Each rank has an engine, a barrier endpoint, a step
// loop and a stream of its own; they share the channel to the router, a model's weights and nothing else.
// Threads: two per rank (step loop, link), and --cpu_threads less one per rank with a CPU engine, the HTTP
// server's; RunWorker blocks its caller.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/net/tls.h"
#include "worker/engine/cpu/cpu_engine.h"
#include "worker/engine/cuda/device/cuda_engine.h"
#include "worker/engine/engine.h"
#include "worker/engine/model/model.h"
#include "worker/engine/sim/sim_engine.h"
#include "worker/link/part_server.h"

namespace bfio::worker {

// The engines of a process's ranks. Makes the engine that --engine names, one per rank; what ranks can share
// (a model's weights) is loaded once. Threads: none; used at the start.
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

  // Digest of the ranks' model (worker/engine/model/model.h).
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

inline constexpr int64_t kStepLogBytes = int64_t{64} << 20;

struct WorkerOptions {
  // HOST:PORT.
  std::string router = "127.0.0.1:50051";
  // TLS files of the link to the router; empty: plain text.
  TlsFiles tls;
  // If the process has several ranks, "#0", "#1", ... is appended to each rank's name.
  std::string worker_id;
  // Group of its ranks; empty: the router assigns one.
  std::string group;
  std::string barrier_host = "127.0.0.1";
  std::string barrier = "star";
  // Permits unprotected ports that other machines can reach: the port of `parts`, and a barrier whose secret
  // is sent over an unencrypted link.
  bool insecure = false;
  int32_t ranks_per_process = 1;
  EngineOptions engine;
  absl::Duration connect_timeout = absl::Seconds(60);
  absl::Duration drain_timeout = absl::Seconds(30);
  // Devices whose energy is metered (worker/energy/nvml_meter.h), by rank within the process, repeated over
  // the ranks; empty: none.
  std::vector<std::string> energy_devices;
  // File of the step log, of at most kStepLogBytes; empty: steps are not logged.
  std::string step_log;
  // Memory of each rank for requests kept for the next router, in bytes.
  int64_t resume_buffer_bytes = int64_t{64} << 20;
  // StepLoopOptions::kv_watermark.
  double kv_watermark = 0;
  // HOST:PORT of /metrics and the probes; empty: none.
  std::string http_listen;
  // Serves parts of a model together with other servers, instead of whole models; null: an ordinary worker.
  std::shared_ptr<const PartServer> parts;
  std::string version;
};

// INVALID_ARGUMENT, naming the flag, when an option is out of range.
absl::Status CheckWorkerOptions(const WorkerOptions& options);

// Runs until the router sends Shutdown, or until a signal (ShutdownSignal) and the drain that follows it: OK.
// An error when a rank could not start, lost its engine, or never reached the router.
absl::Status RunWorker(const WorkerOptions& options);

}  // namespace bfio::worker
