// The requests of a chaos run, and the tokens that each must get.
//
// Purpose: an exact oracle: what an engine makes of a request does not depend on anything that happens to the
// group, so every token of every stream has one right value. Threads: const methods from any.
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
  // Prompt, length and sampling of the n-th request.
  virtual v1::GenerateRequest Request(uint64_t n) const = 0;
  virtual uint32_t Token(uint64_t n, uint32_t index) const = 0;
};

// Synthetic prompts for sim engines without --eos_probability; `mean_output` tokens on average.
std::unique_ptr<Workload> MakeSimWorkload(uint64_t seed, uint32_t mean_output);

// Token ids for CPU engines over the checkpoint in `model`: `distinct` requests, again and again. Their
// tokens are made beforehand by an engine of this process.
std::unique_ptr<Workload> MakeCpuWorkload(uint64_t seed, const std::string& model, uint32_t mean_output,
                                          int distinct);

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_WORKLOAD_H_
