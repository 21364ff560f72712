// Runs client API requests on an engine without other requests; they must give the same tokens wherever they
// run.
//
// Purpose: the expected tokens for tests with real processes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bfio/v1/inference.pb.h"
#include "tests/testing/decode_schedule.h"
#include "worker/engine/cpu/cpu_engine.h"

namespace bfio::testing {

inline worker::SequenceRequest ForEngine(const v1::GenerateRequest& from) {
  worker::SequenceRequest request;
  request.handle = 1;
  request.prompt.assign(from.token_ids().ids().begin(), from.token_ids().ids().end());
  request.prompt_length =
      from.has_token_ids() ? from.token_ids().ids_size() : static_cast<int64_t>(from.prompt_length());
  request.max_new_tokens = from.max_new_tokens();
  request.ignore_eos = from.ignore_eos();
  const v1::SamplingParams& sampling = from.sampling();
  request.sampling.temperature = sampling.temperature();
  if (sampling.has_top_p()) request.sampling.top_p = sampling.top_p();
  if (sampling.has_top_k()) request.sampling.top_k = static_cast<int32_t>(sampling.top_k());
  request.sampling.seed = sampling.seed();
  return request;
}

// Computed by the CPU engine with the whole model.
inline std::vector<std::vector<uint32_t>> TokensAlone(const std::string& model,
                                                      const std::vector<v1::GenerateRequest>& requests) {
  worker::CpuOptions options;
  options.decode.limits = {1, 1024, 1024};
  const auto engine =
      *worker::MakeCpuEngine(options, *worker::LoadCpuWeights(model, worker::cpu::Storage::kAuto));
  std::vector<std::vector<uint32_t>> tokens;
  for (const auto& request : requests) tokens.push_back(RunAlone(*engine, ForEngine(request)).tokens);
  return tokens;
}

}  // namespace bfio::testing
