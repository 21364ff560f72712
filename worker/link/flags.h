// bfio_worker's options as an OptionTable. Defines each option's flag, config field and --help line. Threads:
// call from main, before threads are started.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/config/options.h"
#include "worker/link/worker.h"

namespace bfio::worker {

struct WorkerSettings {
  WorkerOptions worker;
  // Batch formation, for every engine; 0 tokens: the engine's default.
  DecodeOptions decode = {.page_tokens = 64, .token_budget = 0};
  std::string log_level = "info", log_format = "text";
};

// `settings` outlives the reading of `table`.
void AddWorkerOptions(OptionTable& table, WorkerSettings& settings);

// Sets values that depend on several options. Call after all are read. INVALID_ARGUMENT, naming the flag.
absl::Status FinishWorkerOptions(const OptionTable& table, WorkerSettings& settings);

}  // namespace bfio::worker
