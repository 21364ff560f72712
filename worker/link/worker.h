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
#include "absl/time/time.h"
#include "common/net/tls.h"
#include "worker/link/engines.h"
#include "worker/link/part_server.h"

namespace bfio::worker {

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
