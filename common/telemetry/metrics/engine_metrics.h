// What vLLM and SGLang publish at /metrics, by rank. Reads Prometheus' text format, from servers that are not
// trusted. Pure. Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace bfio {

// A sample in Prometheus' text format.
struct MetricSample {
  absl::string_view name;
  // Names and values as written, without quotes; escapes are kept.
  std::vector<std::pair<absl::string_view, absl::string_view>> labels;
  double value = 0;

  // Empty: no such label.
  absl::string_view label(absl::string_view name) const;
};

// Calls `on` for each sample whose name begins with `prefix`. The texts are valid during the call. Malformed
// lines are skipped.
void ReadMetrics(absl::string_view text, absl::string_view prefix,
                 absl::FunctionRef<void(const MetricSample&)> on);

// A histogram since the engine's start.
struct MetricHistogram {
  double count = 0, sum = 0;
  // Number of values up to each bound; the last bound is infinite.
  std::map<double, double> up_to;
};

// Numbers are -1 where they are not reported.
struct EngineMetrics {
  double running = -1, waiting = -1;
  // Share of the KV cache in use.
  double kv_use = -1;
  double kv_tokens = -1;
  // Requests that it runs at a time (SGLang).
  double slots = -1;
  // Tokens since its start: generated, of prompts, and of prompts those found in the cache.
  double generated = -1, prompted = -1, cached = -1;
  // Seconds between the tokens of a request, to its first one, and to its end; lengths in tokens.
  MetricHistogram gaps, first_tokens, ends, prompts, outputs;
  // Type of the KV cache, and tokens of its blocks; empty, 0: not reported.
  std::string kv_type;
  int32_t kv_block_tokens = 0;
};
// By rank (label `engine` or `dp_rank`); rank 0 if a sample names none.
std::map<int32_t, EngineMetrics> ReadEngineMetrics(absl::string_view text);

}  // namespace bfio
