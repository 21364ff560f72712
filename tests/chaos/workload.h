// The requests of a chaos run, and the tokens that each must receive.
//
// Purpose: an exact reference. The tokens of a request do not depend on what happens to the group, so every
// token of every stream has one correct value. Threads: any thread may call const methods.
#ifndef BFIO_TESTS_CHAOS_WORKLOAD_H_
#define BFIO_TESTS_CHAOS_WORKLOAD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bfio/v1/inference.pb.h"

namespace bfio::chaos {

class Workload {
 public:
  virtual ~Workload() = default;
  // Prompt, length and sampling of request n.
  virtual v1::GenerateRequest Request(uint64_t n) const = 0;
  virtual uint32_t Token(uint64_t n, uint32_t index) const = 0;
};

// Synthetic prompts for sim engines without --sim=eos_probability; `mean_output` tokens on average.
std::unique_ptr<Workload> MakeSimWorkload(uint64_t seed, uint32_t mean_output);

// Token ids for CPU engines with the checkpoint in `model`: `distinct` different requests, repeated. An
// engine of this process computes their tokens in advance.
std::unique_ptr<Workload> MakeCpuWorkload(uint64_t seed, const std::string& model, uint32_t mean_output,
                                          int distinct);

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_WORKLOAD_H_
