// A rank's step metrics: ForwardPassMetrics, version 1, of Dynamo's scheduler class for vLLM
// (dynamo.vllm.instrumented_scheduler), one message per step. Pure. Threads: any.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/engine_link/engine_steps.h"

namespace bfio::router {

// The step of a message with this number. An idle rank's heartbeat is a step that took no time.
// INVALID_ARGUMENT with one line.
absl::StatusOr<EngineStep> ReadStepMetrics(uint64_t number, absl::string_view message);

}  // namespace bfio::router
