// The requests of a chaos run, and the tokens that each must receive.
//
// Purpose: an exact reference. The tokens of a request do not depend on what happens to the group, so every
// token of every stream has one correct value. Threads: any thread may call const methods.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bfio/v1/inference.pb.h"

namespace bfio::chaos {

class Workload {
 public:
  // Synthetic prompts for sim engines without --sim=eos_probability; `mean_output` tokens on average.
  Workload(uint64_t seed, uint32_t mean_output) : seed_(seed), mean_output_(mean_output) {}
  // From now on token ids for CPU engines with the checkpoint in `model`: `distinct` different requests,
  // repeated. An engine of this process computes their tokens in advance. `greedy`: none is drawn.
  absl::Status UseModel(const std::string& model, int distinct, bool greedy = false);

  // Prompt, length and sampling of request n.
  v1::GenerateRequest Request(uint64_t n) const;
  uint32_t Token(uint64_t n, uint32_t index) const;

 private:
  const uint64_t seed_;
  const uint32_t mean_output_;
  // Of a model.
  std::vector<v1::GenerateRequest> requests_;
  std::vector<std::vector<uint32_t>> tokens_;
};

}  // namespace bfio::chaos
