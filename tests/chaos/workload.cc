#include "tests/chaos/workload.h"

#include "common/base/rng.h"
#include "tests/testing/engine_alone.h"
#include "worker/engine/cpu/cpu_engine.h"
#include "worker/engine/sim/sim_tokens.h"

namespace bfio::chaos {
namespace {

// One request in fifty is long enough to run through several faults.
uint32_t OutputLength(Rng& rng, uint32_t mean) {
  if (rng.Below(50) == 0) return 8 * mean;
  return 1 + static_cast<uint32_t>(rng.Below(2 * mean - 1));
}

class SimWorkload final : public Workload {
 public:
  SimWorkload(uint64_t seed, uint32_t mean_output) : seed_(seed), mean_output_(mean_output) {}

  v1::GenerateRequest Request(uint64_t n) const override {
    Rng rng = Rng(seed_).Fork(n);
    v1::GenerateRequest request;
    request.set_prompt_length(1 + static_cast<uint32_t>(rng.Below(400)));
    request.set_max_new_tokens(OutputLength(rng, mean_output_));
    request.set_ignore_eos(true);
    request.mutable_sampling()->set_seed(rng.Next());
    return request;
  }

  uint32_t Token(uint64_t n, uint32_t index) const override {
    const v1::GenerateRequest request = Request(n);
    worker::SequenceRequest sequence = {.prompt_length = request.prompt_length()};
    sequence.sampling.seed = request.sampling().seed();
    return worker::SimToken(worker::SimStreamKey(sequence), index, 0);
  }

 private:
  const uint64_t seed_;
  const uint32_t mean_output_;
};

class CpuWorkload final : public Workload {
 public:
  CpuWorkload(uint64_t seed, const std::string& model, uint32_t mean_output, int distinct) {
    const auto weights = worker::LoadCpuWeights(model, worker::cpu::Storage::kAuto);
    if (!weights.ok()) return;
    worker::CpuOptions options;
    options.decode.limits = {1, 4096, 4096};
    const auto engine = worker::MakeCpuEngine(options, *weights);
    if (!engine.ok()) return;
    Rng rng(seed);
    for (int i = 0; i < distinct; ++i) {
      v1::GenerateRequest& request = requests_.emplace_back();
      const auto length = 1 + rng.Below(i % 4 == 0 ? 150 : 20);
      for (uint64_t t = 0; t < length; ++t)
        request.mutable_token_ids()->add_ids(static_cast<uint32_t>(rng.Below(256)));
      request.set_max_new_tokens(OutputLength(rng, mean_output));
      request.set_ignore_eos(true);
      request.mutable_sampling()->set_seed(rng.Next());
      if (i % 2 == 1) request.mutable_sampling()->set_temperature(0.75);
      tokens_.push_back(testing::RunAlone(**engine, testing::ForEngine(request)).tokens);
    }
  }

  v1::GenerateRequest Request(uint64_t n) const override { return requests_[n % requests_.size()]; }
  uint32_t Token(uint64_t n, uint32_t index) const override { return tokens_[n % tokens_.size()][index]; }
  bool ok() const { return !requests_.empty(); }

 private:
  std::vector<v1::GenerateRequest> requests_;
  std::vector<std::vector<uint32_t>> tokens_;
};

}  // namespace

std::unique_ptr<Workload> MakeSimWorkload(uint64_t seed, uint32_t mean_output) {
  return std::make_unique<SimWorkload>(seed, mean_output);
}

std::unique_ptr<Workload> MakeCpuWorkload(uint64_t seed, const std::string& model, uint32_t mean_output,
                                          int distinct) {
  auto workload = std::make_unique<CpuWorkload>(seed, model, mean_output, distinct);
  if (!workload->ok()) return nullptr;
  return workload;
}

}  // namespace bfio::chaos
