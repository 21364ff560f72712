// Measures the steps of an engine on any device.
//
// Purpose: brings sequences to a context in untimed prefill and times steps of one token each; used by both
// parts of bfio_engine_bench. Threads: none.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "worker/engine/engine.h"

namespace bfio::worker {

inline double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Parses "1,4,16".
inline std::vector<int64_t> Numbers(const std::string& text) {
  std::vector<int64_t> numbers;
  for (const auto part : absl::StrSplit(text, ',')) {
    int64_t number = 0;
    if (absl::SimpleAtoi(part, &number) && number > 0) numbers.push_back(number);
  }
  return numbers;
}

[[noreturn]] inline void Fail(const absl::Status& status) {
  std::fprintf(stderr, "bfio_engine_bench: %s\n", std::string(status.message()).c_str());
  std::exit(2);
}

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// How `batch` sequences are brought to a context of at least `context` tokens, and then generate tokens
// together.
struct Course {
  int64_t batch = 0;
  int64_t context = 0;
  // Number of timed steps.
  int64_t steps = 0;
  int64_t step_tokens = 0;

  // Upper bound of the tokens that the first sequence generates while the last one's prompt is still
  // computed.
  int64_t lead() const { return batch * context / std::max<int64_t>(step_tokens - batch, 16) + 2; }
  int64_t max_new_tokens() const { return lead() + steps + 3; }
  EngineLimits limits() const {
    const int64_t most = context + max_new_tokens();
    return {static_cast<int32_t>(batch), batch * most, most};
  }
};

struct Measured {
  double step_s = 0;
  double prefill_tokens_per_s = 0;
  // KV tokens of all sequences together, in the median step.
  double kv_tokens = 0;
};

// REQUIRES: the engine has the course's limits and step_tokens.
inline Measured MeasureSteps(Engine& engine, const Course& course) {
  for (int64_t i = 0; i < course.batch; ++i) {
    SequenceRequest request;
    request.handle = static_cast<Handle>(i) + 1;
    request.prompt_length = course.context;
    request.max_new_tokens = course.max_new_tokens();
    request.ignore_eos = true;
    request.sampling.seed = static_cast<uint64_t>(i);
    if (absl::Status status = engine.Admit(request); !status.ok()) Fail(status);
  }
  StepOutput out;
  Measured measured;
  double start = Now();
  int64_t prefilled = 0;
  while (prefilled < course.batch * course.context) {
    if (absl::Status status = engine.Step(out); !status.ok()) Fail(status);
    prefilled += out.prefill_tokens;
  }
  measured.prefill_tokens_per_s = static_cast<double>(prefilled) / (Now() - start);
  std::vector<double> times, tokens;
  while (static_cast<int64_t>(times.size()) < course.steps) {
    start = Now();
    if (absl::Status status = engine.Step(out); !status.ok()) Fail(status);
    times.push_back(Now() - start);
    tokens.push_back(static_cast<double>(out.load_tokens));
  }
  if (engine.active() != course.batch) Fail(absl::InternalError("a sequence ended too early"));
  measured.step_s = Median(times);
  measured.kv_tokens = Median(tokens);
  return measured;
}

}  // namespace bfio::worker
