#include "tools/sim/network/examples.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/cost/batch_time.h"

namespace bfio::sim {
namespace {

// Scales rates, which are 1 so far, so that the busiest engine has this load.
Network WithLoad(Network network, double load) {
  double busiest = 0;
  for (int32_t engine = 0; engine < network.engines; ++engine)
    busiest = std::max(busiest, network.Load(engine));
  for (AgentType& type : network.types) type.rate *= load / busiest;
  return network;
}

TokenLaw Poisson(double mean) {
  return {mean, true};
}

}  // namespace

double BatchSeconds(int64_t tokens) {
  return BatchCost().Seconds(tokens);
}

Network RybkoStolyar(double load) {
  const auto call = [](int32_t engine, double prefill, std::vector<int32_t> after) {
    return CallType{engine, 1, Poisson(prefill), Poisson(32), std::move(after)};
  };
  Network network{.engines = 2, .token_budget = 768};
  network.types = {{"A", 1, {call(0, 32, {}), call(1, 512, {0})}},
                   {"B", 1, {call(1, 32, {}), call(0, 512, {0})}}};
  return WithLoad(std::move(network), load);
}

double RybkoStolyarThreshold() {
  return (32 + 32 + 512 + 32) / (2.0 * (512 + 32));
}

Network ForkJoin(double load) {
  Network network{.engines = 4, .token_budget = 512, .batch_time = BatchSeconds};
  network.types = {{"fork-join",
                    1,
                    {{0, 1, Poisson(100), Poisson(50), {}},
                     {1, 1, Poisson(200), Poisson(100), {0}},
                     {2, 1, Poisson(150), Poisson(80), {0}},
                     {3, 1, Poisson(250), Poisson(40), {1, 2}}}}};
  return WithLoad(std::move(network), load);
}

Network Cycles(double load) {
  Network network{.engines = 2, .token_budget = 512, .batch_time = BatchSeconds};
  network.types = {{"plan, code, review",
                    1,
                    {{0, 1, Poisson(200), Poisson(60), {}},
                     {1, 1, Poisson(300), Poisson(200), {0}},
                     {0, 1, Poisson(500), Poisson(30), {1}}}},
                   {"debate",
                    1,
                    {{1, 1, Poisson(50), Poisson(80), {}},
                     {0, 1, Poisson(130), Poisson(80), {0}},
                     {1, 1, Poisson(210), Poisson(80), {1}},
                     {0, 1, Poisson(290), Poisson(80), {2}},
                     {1, 1, Poisson(370), Poisson(80), {3}}}}};
  return WithLoad(std::move(network), load);
}

Network LongAndShort(double load) {
  const auto sequence = [](std::string name, double rate, int32_t calls, double prompt, double answer) {
    AgentType type{std::move(name), rate, {}};
    for (int32_t i = 0; i < calls; ++i) {
      type.calls.push_back({0, 2, Poisson(prompt + i * answer), Poisson(answer),
                            i == 0 ? std::vector<int32_t>{} : std::vector<int32_t>{i - 1}});
    }
    return type;
  };
  Network network{.engines = 2, .token_budget = 512};
  network.types = {sequence("one call", 6, 1, 200, 60), sequence("three calls", 3, 3, 200, 60),
                   sequence("twelve calls", 1, 12, 100, 40)};
  return WithLoad(std::move(network), load);
}

Network ParallelEngines(int32_t engines, double load) {
  Network network{.engines = engines, .token_budget = 512, .batch_time = BatchSeconds};
  network.types = {{"request", 1, {{0, engines, {100}, {100}, {}}}}};
  return WithLoad(std::move(network), load);
}

Network TwoTypes(double load) {
  Network network{.engines = 1, .token_budget = 512, .batch_time = BatchSeconds};
  network.types = {{"short prompts, long answers", 1, {{0, 1, {50}, {350}, {}}}},
                   {"long prompts, short answers", 1, {{0, 1, {600}, {60}, {}}}}};
  return WithLoad(std::move(network), load);
}

}  // namespace bfio::sim
