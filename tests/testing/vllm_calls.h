// Calls of vLLM's engine API in the way that a gateway makes them.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/gateway_calls.h"

namespace bfio::testing {

namespace pb = ::vllm::grpc::engine;

using Outputs = OutputsOf<Vllm>;
using Call = CallOf<Vllm>;

// A request that samples with a seed.
inline pb::GenerateRequest Request(uint32_t output, bool stream = true) {
  pb::GenerateRequest request = GreedyRequest<Vllm>(output, stream);
  request.mutable_sampling_params()->set_temperature(1);
  request.mutable_sampling_params()->set_seed(5);
  return request;
}

inline std::unique_ptr<pb::VllmEngine::Stub> StubAt(const std::string& address) {
  return StubOf<Vllm>(address);
}

inline Outputs Generate(pb::VllmEngine::Stub& stub, const pb::GenerateRequest& request) {
  return GenerateAs<Vllm>(stub, request);
}

// The KV of prompts that test engines have computed for others, as vLLM's NIXL connector keeps it: it is
// pinned until it is fetched or its lease ends, and is another prompt's afterwards. Shared by the engines
// that transfer KV. Threads: any.
struct HandedOverKv {
  struct Blocks {
    // Null: it has died.
    const void* server = nullptr;
    absl::Time until;
    std::vector<uint32_t> prompt;
  };
  // What an engine finds for a request: nothing is asked for, its prompt's KV, that of another prompt, or a
  // server that is gone.
  enum class Fetched { kNothing, kRight, kWrong, kGone };

  // Pins the prompt's KV; the parameters of its hand-off.
  std::string Make(const void* server, std::vector<uint32_t> prompt) {
    std::lock_guard lock(mutex);
    const std::string id = absl::StrCat("kv-", ++made);
    blocks[id] = {server, MonotonicNow() + lease, std::move(prompt)};
    return absl::StrCat(
        R"({"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[1]],)",
        R"("remote_engine_id": "engine-p", "remote_host": "localhost", "remote_port": 5600,)",
        R"("remote_request_id": ")", id, R"("})");
  }
  // The same with Mooncake's connector, where the caller has named the transfer. The engine keeps nothing of
  // one that may end at a stop token.
  void MakeNamed(const void* server, const std::string& engine, const pb::GenerateRequest& request) {
    const auto asked = nlohmann::json::parse(request.kv_transfer_params_json(), nullptr, false);
    if (!request.sampling_params().ignore_eos()) return;
    std::lock_guard lock(mutex);
    ++made;
    const auto& ids = request.tokenized().input_ids();
    blocks[absl::StrCat(engine, " http://bootstrap:1 ", asked.value("transfer_id", ""))] = {
        server, MonotonicNow() + lease, {ids.begin(), ids.end()}};
  }
  // Frees it.
  Fetched Fetch(const std::string& parameters, const std::vector<uint32_t>& prompt) {
    const auto asked = nlohmann::json::parse(parameters, nullptr, false);
    if (!asked.is_object() || !asked.value("do_remote_prefill", false)) return Fetched::kNothing;
    std::lock_guard lock(mutex);
    const bool named = asked.contains("transfer_id");
    // vLLM 0.32 ends when the caller of such a request gives up.
    if (!named && !asked.contains("remote_request_id")) return ++fatal, Fetched::kGone;
    const auto text = [&](const char* field) { return asked.value(field, std::string()); };
    const auto found =
        blocks.extract(named ? absl::StrCat(text("remote_engine_id"), " ", text("remote_bootstrap_addr"), " ",
                                            text("transfer_id"))
                             : text("remote_request_id"));
    if (found && found.mapped().server == nullptr) return Fetched::kGone;
    const bool right = found && MonotonicNow() < found.mapped().until && found.mapped().prompt == prompt;
    ++(right ? used : wrong);
    return right ? Fetched::kRight : Fetched::kWrong;
  }
  void OnDeath(const void* server) {
    std::lock_guard lock(mutex);
    for (auto& [id, one] : blocks)
      if (one.server == server) one.server = nullptr;
  }
  int count(int HandedOverKv::*of) {
    std::lock_guard lock(mutex);
    return this->*of;
  }

  std::mutex mutex;
  std::map<std::string, Blocks> blocks;
  int made = 0, used = 0, wrong = 0, fatal = 0;
  absl::Duration lease = absl::Seconds(30);
};

}  // namespace bfio::testing
