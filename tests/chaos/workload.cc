#include "tests/chaos/workload.h"

#include "common/base/rng.h"
#include "tests/testing/engine_alone.h"
#include "worker/engine/sim/sim_engine.h"

namespace bfio::chaos {
namespace {

// One request in fifty is long enough to run through several faults.
uint32_t OutputLength(Rng& rng, uint32_t mean) {
  if (rng.Below(50) == 0) return 8 * mean;
  return 1 + static_cast<uint32_t>(rng.Below(2 * mean - 1));
}

}  // namespace

absl::Status Workload::UseModel(const std::string& model, int distinct, bool greedy) {
  if (auto weights = worker::LoadCpuWeights(model, worker::cpu::Storage::kAuto); !weights.ok())
    return weights.status();
  Rng rng(seed_);
  for (int i = 0; i < distinct; ++i) {
    v1::GenerateRequest& request = requests_.emplace_back();
    const auto length = 1 + rng.Below(i % 4 == 0 ? 150 : 20);
    for (uint64_t t = 0; t < length; ++t)
      request.mutable_token_ids()->add_ids(static_cast<uint32_t>(rng.Below(256)));
    request.set_max_new_tokens(OutputLength(rng, mean_output_));
    request.set_ignore_eos(true);
    request.mutable_sampling()->set_seed(rng.Next());
    if (i % 2 == 1 && !greedy) request.mutable_sampling()->set_temperature(0.75);
  }
  tokens_ = testing::TokensAlone(model, requests_);
  return absl::OkStatus();
}

v1::GenerateRequest Workload::Request(uint64_t n) const {
  if (!requests_.empty()) return requests_[n % requests_.size()];
  Rng rng = Rng(seed_).Fork(n);
  v1::GenerateRequest request;
  request.set_prompt_length(1 + static_cast<uint32_t>(rng.Below(400)));
  request.set_max_new_tokens(OutputLength(rng, mean_output_));
  request.set_ignore_eos(true);
  request.mutable_sampling()->set_seed(rng.Next());
  return request;
}

uint32_t Workload::Token(uint64_t n, uint32_t index) const {
  if (!tokens_.empty()) return tokens_[n % tokens_.size()][index];
  const v1::GenerateRequest request = Request(n);
  worker::SequenceRequest sequence = {.prompt_length = request.prompt_length()};
  sequence.sampling.seed = request.sampling().seed();
  return worker::SimToken(worker::SimStreamKey(sequence), index, 0);
}

}  // namespace bfio::chaos
