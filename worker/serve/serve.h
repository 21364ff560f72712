// A worker process that gateways call: its ranks as one engine, without a router.
//
// Purpose: --serve=vllm speaks vLLM's engine API (router/frontend/vllm) and balances among its ranks as vLLM
// does (rank_balancer.h), so for a gateway it is indistinguishable from vLLM's server. It is the control in
// comparisons with the router, and an engine to test routers against. Threads: two more than the ranks;
// RunServing blocks its caller.
#ifndef BFIO_WORKER_SERVE_SERVE_H_
#define BFIO_WORKER_SERVE_SERVE_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/config/options.h"
#include "worker/link/worker.h"

namespace bfio::worker {

enum class ServeApi { kNone, kVllm };

struct ServeOptions {
  ServeApi api = ServeApi::kNone;
  // HOST:PORT; port 0 picks a free one.
  std::string listen = "127.0.0.1:50051";
  // The tokenizer's directory and the model's name, as in the router. Empty: --model and its last part.
  std::string tokenizer;
  std::string served_model_name;
};

// `options` outlives the reading of `table`.
void AddServeOptions(OptionTable& table, ServeOptions& options);

// Sets values that depend on several options. Call after all are read. INVALID_ARGUMENT, naming the flag.
absl::Status FinishServeOptions(const OptionTable& table, ServeOptions& serve, WorkerOptions& worker);

// Runs until a signal (ShutdownSignal) and the drain that follows it: OK. An error when the port or an engine
// is not available, or an engine has failed. REQUIRES: `serve` names an API.
absl::Status RunServing(const ServeOptions& serve, const WorkerOptions& options);

class LocalEngine;

// Waits until the engine has no request; OK also when `timeout` is over. An error of `ranks` (their step
// loops' status) or of the engine ends the wait and is returned. For RunServing and its tests.
absl::Status AwaitDrained(LocalEngine& engine, absl::FunctionRef<absl::Status()> ranks,
                          absl::Duration timeout);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_SERVE_SERVE_H_
