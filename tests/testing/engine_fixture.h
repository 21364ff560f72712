// A router in front of engines that have no bfio code (--engines), with each protocol.
//
// Purpose: starts the router as a process; the test provides the engines. Threads: the test's.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/bad_input.h"
#include "tests/testing/cluster.h"
#include "tests/testing/scripted_engine.h"
#include "tests/testing/vllm_calls.h"

namespace bfio::testing {

// A greedy, streaming request as a gateway sends it.
template <typename P>
typename P::GenerateRequest FromGatewayOf(const Tokens& prompt, uint32_t output) {
  auto request = P::Plain(prompt);
  request.set_stream(true);
  P::SetMaxTokens(*request.mutable_sampling_params(), output);
  return request;
}
inline pb::GenerateRequest FromGateway(const Tokens& prompt, uint32_t output) {
  return FromGatewayOf<Vllm>(prompt, output);
}

inline v1::GenerateRequest Request(const Tokens& prompt, uint32_t output) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
  request.set_max_new_tokens(output);
  request.set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(0);
  return request;
}

template <typename P>
class EnginesOf : public ::testing::Test {
 protected:
  using Engine = ScriptedEngineOf<P>;

  static typename Engine::Options At(const HeldPort& port, int32_t ranks = 1) {
    typename Engine::Options options;
    options.listen = port.address();
    options.ranks = ranks;
    return options;
  }
  // Starts a router with these engines in its flags; they have `ranks` ranks in total.
  void ServeEngines(int ranks, std::vector<std::string> flags) {
    ClusterOptions options;
    options.worker_processes = 0;
    options.ranks = ranks;
    options.router_flags = std::move(flags);
    options.router_flags.push_back(absl::StrCat("--client_apis=bfio,", P::kName));
    cluster_ = std::make_unique<Cluster>(options);
    ASSERT_TRUE(cluster_->ok());
  }
  // The same for engines at these addresses; `settings` are those of their entries in --config. Unless they
  // say otherwise, requests name their ranks.
  void Serve(const std::vector<std::string>& addresses, int ranks, std::vector<std::string> flags = {},
             const std::string& settings = std::is_same_v<P, Sglang> ? ", pinned: true" : "") {
    std::string config = "engines:\n";
    for (const std::string& address : addresses)
      absl::StrAppend(&config, "- {url: \"", P::kName, "://", address, "\"", settings, "}\n");
    flags.push_back("--config=" + WriteFile("engines.yaml", config));
    ServeEngines(ranks, std::move(flags));
  }
  v1::Inference::Stub& stub() { return cluster_->inference(); }
  // Sends so many requests and expects the tokens of an undisturbed engine. `one`: every tenth asks for one.
  void ExpectRightTokens(
      int count, const std::function<void()>& meanwhile = [] {}, bool one = false) {
    const auto prompt = [](int i) {
      return Tokens(5 + static_cast<size_t>(i) % 7, 2'000 + static_cast<uint32_t>(i));
    };
    const auto length = [&](int i) { return static_cast<uint32_t>(one && i % 10 == 0 ? 1 : 20 + i % 20); };
    std::vector<std::unique_ptr<RequestStream>> streams;
    for (int i = 0; i < count; ++i)
      streams.push_back(std::make_unique<RequestStream>(stub(), Request(prompt(i), length(i))));
    meanwhile();
    for (int i = 0; i < count; ++i) {
      const GenerateResult& result = streams[i]->End();
      EXPECT_TRUE(result.status.ok()) << i << ": " << result.status.error_message();
      EXPECT_TRUE(result.contiguous) << i;
      EXPECT_EQ(result.tokens, TokensAfter(prompt(i), length(i))) << i;
      EXPECT_EQ(result.finishes, 1) << i;
      EXPECT_EQ(result.finish.usage().completion_tokens(), length(i)) << i;
    }
  }
  // The router's API for gateways.
  typename P::Service::Stub& gateway() {
    if (gateway_ == nullptr) gateway_ = StubOf<P>(cluster_->address());
    return *gateway_;
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<typename P::Service::Stub> gateway_;
};
using EnginesTest = EnginesOf<Vllm>;

}  // namespace bfio::testing
