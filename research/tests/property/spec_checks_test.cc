// Golden checks of the BF-IO paper's model (constant outputs), in the simulator.
//
// With prompts uniform on 1..100 and every output 20 tokens all slots turn over together, so every batch is a
// fresh draw: FCFS's imbalance is G m_G sigma sqrt(B), m_G being the expected maximum of G standard normals
// and sigma = 28.87 the standard deviation of a prompt. A program that can choose among 3 G B requests leaves
// no imbalance.
#include <gtest/gtest.h>

#include <cmath>

#include "common/base/rng.h"
#include "nlohmann/json.hpp"
#include "tools/sim/run/simulation.h"

namespace bfio::sim {
namespace {

struct Case {
  int32_t workers, batch;
  // m_G.
  double largest_of;
};

Trace ConstantOutputs() {
  Trace trace;
  trace.source = "constant outputs";
  Rng rng(3);
  trace.requests.resize(200'000);
  for (TraceRequest& request : trace.requests) {
    request.prompt_tokens = 1 + static_cast<int64_t>(rng.Below(100));
    request.output_tokens = 20;
  }
  return trace;
}

double Imbalance(const Case& setting, const Trace& trace, const char* policy, int64_t steps) {
  SimOptions options;
  options.policy = policy;
  options.objective = "paper";
  options.workers = setting.workers;
  options.batch = setting.batch;
  options.reveal = 3 * setting.workers * setting.batch;
  options.warmup = 100;
  options.steps = steps;
  auto simulation = Simulation::Create(options, trace);
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  const auto run = (*simulation)->Run();
  EXPECT_TRUE(run.ok()) << run.status();
  return run->at("avg_imbalance_tokens");
}

class ConstantOutput : public ::testing::TestWithParam<Case> {};

TEST_P(ConstantOutput, FcfsIsTheLargestOfNormalsAndTheProgramIsEven) {
  const Trace trace = ConstantOutputs();
  const double expected = GetParam().workers * GetParam().largest_of * 28.87 * std::sqrt(GetParam().batch);
  EXPECT_NEAR(Imbalance(GetParam(), trace, "fcfs", 12'000) / expected, 1, 0.04);
  EXPECT_LE(Imbalance(GetParam(), trace, "bf_io", 400), 0.01 * expected);
}

INSTANTIATE_TEST_SUITE_P(Groups, ConstantOutput,
                         ::testing::Values(Case{4, 16, 1.029}, Case{8, 16, 1.424}, Case{16, 16, 1.766}));

}  // namespace
}  // namespace bfio::sim
