// Dead connections between a router and its engines, and servers that are replaced behind an address.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>

#include "absl/strings/numbers.h"
#include "tests/chaos/tcp_proxy.h"
#include "tests/testing/engine_fixture.h"

namespace bfio::testing {
namespace {

class EngineConnections : public EnginesTest {
 protected:
  static uint16_t PortOf(const HeldPort& port) {
    int number = 0;
    EXPECT_TRUE(absl::SimpleAtoi(port.address().substr(port.address().find(':') + 1), &number));
    return static_cast<uint16_t>(number);
  }
  // Starts a router in front of the server behind the proxy.
  void ServeThrough(const chaos::TcpProxy& proxy) { Serve({proxy.address()}, 1, {"--step_timeout=1s"}); }
  // The result of a request, with `disturb` called after its first token.
  GenerateResult During(const Tokens& prompt, uint32_t output, const std::function<void()>& disturb) {
    RequestStream stream(stub(), Request(prompt, output), {.deadline = kSlowdown * absl::Seconds(30)});
    EXPECT_TRUE(stream.Read());
    disturb();
    return stream.End();
  }
};

// TCP itself notices only after about 15 minutes.
TEST_F(EngineConnections, AConnectionThatCarriesNothingIsReplaced) {
  const HeldPort port;
  ScriptedEngine engine(At(port));
  chaos::TcpProxy proxy("127.0.0.1", "127.0.0.1", PortOf(port));
  ServeThrough(proxy);
  const GenerateResult result = During({1, 2, 3}, 1'000, [&] { proxy.BlackHole(); });
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.tokens, TokensAfter({1, 2, 3}, 1'000));
}

// As behind a service's address: a healthy server answers at any time.
TEST_F(EngineConnections, AServerThatTakesOverAnAddressServesWithItsOwnSizes) {
  const HeldPort a, b;
  ScriptedEngine one(At(a));
  ScriptedEngine::Options options = At(b);
  options.slots = 9;
  ScriptedEngine two(options);
  chaos::TcpProxy proxy("127.0.0.1", "127.0.0.1", PortOf(a));
  ServeThrough(proxy);
  const GenerateResult result = During({1, 2, 3}, 1'000, [&] {
    proxy.SetUpstream(PortOf(b));
    proxy.Cut();
  });
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.tokens, TokensAfter({1, 2, 3}, 1'000));
  EXPECT_TRUE(cluster_->WaitFor("its slots", [](const v1::ClusterState& state) {
    return state.workers_size() == 1 && state.workers(0).slots() == 9;
  }));
}

}  // namespace
}  // namespace bfio::testing
