#include "router/frontend/gateway/answers.h"

#include <gmock/gmock.h>

#include <limits>

#include "tests/unit/router/frontend/gateway/protocols.h"

namespace bfio::router::gateway {
namespace {

using bfio::testing::Sglang;
using bfio::testing::Vllm;

Loads TwoRanks() {
  Loads loads;
  loads.timestamp = absl::FromUnixMillis(1'500);
  loads.version = "1.2.3";
  loads.ranks = 2;
  loads.loads = {{.rank = 0,
                  .running_requests = 3,
                  .waiting_requests = 4,
                  .waiting_tokens = 900,
                  .used_tokens = 50,
                  .max_tokens = 200,
                  .tokens_per_second = 12.5,
                  .slots = 6},
                 {.rank = 1,
                  .running_requests = 1,
                  .waiting_requests = 4,
                  .waiting_tokens = 900,
                  .used_tokens = 10,
                  .max_tokens = 200,
                  .tokens_per_second = 7.5,
                  .slots = 6}};
  return loads;
}

template <typename P>
class Answers : public ::testing::Test {
 protected:
  static absl::StatusOr<typename P::GetLoadsResponse> LoadsAre(const Loads& loads,
                                                               std::optional<int32_t> rank) {
    BFIO_ASSIGN_OR_RETURN(const MessagePtr message, ProtocolFor<P>().LoadsOf(loads, rank));
    return static_cast<const typename P::GetLoadsResponse&>(*message);
  }
  static typename P::GetModelInfoResponse Model(const ModelFiles* model, const Serving& serving) {
    return static_cast<const typename P::GetModelInfoResponse&>(
        *ProtocolFor<P>().ModelInfo("m", model, serving));
  }
};
TYPED_TEST_SUITE(Answers, bfio::testing::EngineProtocols, bfio::testing::ProtocolNames);

// The pool is one for all ranks: its requests count once.
TYPED_TEST(Answers, TheLoadIsThatOfAllRanksTogether) {
  EXPECT_EQ(
      this->LoadsAre(TwoRanks(), std::nullopt)->ShortDebugString(),
      std::string("timestamp: \"1970-01-01T00:00:01.500000+00:00\" version: \"1.2.3\" dp_rank_count: 1 "
                  "loads { num_running_reqs: 4 num_waiting_reqs: 4 num_total_reqs: 8 num_used_tokens: 60 "
                  "max_total_num_tokens: 400 token_usage: 0.15 gen_throughput: 20 utilization: 0.15 "
                  "max_running_requests: 12 num_waiting_uncached_tokens: 900 }") +
          (std::is_same_v<TypeParam, Vllm>
               ? ""
               : " aggregate { total_running_reqs: 4 total_waiting_reqs: 4 total_reqs: 8 "
                 "avg_token_usage: 0.15 avg_throughput: 20 avg_utilization: 0.15 }"));
  const auto none = *this->LoadsAre(Loads(), 0);
  ASSERT_EQ(none.loads_size(), 1) << "a gateway takes an empty answer for a dead engine";
  EXPECT_EQ(none.loads(0).token_usage(), 0);
  Loads large = TwoRanks();
  large.loads[0].max_tokens = int64_t{1} << 40;
  EXPECT_EQ(this->LoadsAre(large, 0)->loads(0).max_total_num_tokens(), std::numeric_limits<int32_t>::max());
  for (const int32_t rank : {1, -1}) EXPECT_TRUE(absl::IsNotFound(this->LoadsAre(large, rank).status()));
}

// How long the engine is silent (prefill_pending_tokens) is not told.
TEST(LoadRecords, ARecordHasTheLoadOfAPoll) {
  EXPECT_EQ(LoadRecord(TwoRanks()).ShortDebugString(),
            "running_requests: 4 waiting_requests: 4 waiting_uncached_tokens: 900 token_usage: 0.15 "
            "gen_throughput: 20 max_running_requests: 12 load_only: true num_used_tokens: 60 "
            "max_total_num_tokens: 400 active_token_usage: 0.15");
  EXPECT_TRUE(LoadRecord(Loads()).has_waiting_uncached_tokens()) << "none wait, which is not: unknown";
}

TEST(ServerInfo, TheServerIsOneEngine) {
  const auto info = [](const Protocol& protocol, const std::string& dtype) {
    return protocol.ServerInfo(TwoRanks(), absl::Milliseconds(1'000), dtype);
  };
  EXPECT_EQ(info(VllmProtocol(), "")->ShortDebugString(),
            "active_requests: 8 uptime_seconds: 1 server_type: \"vllm-grpc\" data_parallel_size: 1 "
            "max_num_seqs: 12");
  EXPECT_EQ(static_cast<const Vllm::GetServerInfoResponse&>(*info(VllmProtocol(), "bfloat16")).model_dtype(),
            "torch.bfloat16");
  auto sglang = static_cast<const Sglang::GetServerInfoResponse&>(*info(SglangProtocol(), ""));
  EXPECT_EQ(Sglang::Ranks(sglang), 1);
  EXPECT_EQ(Sglang::Slots(sglang), 12);
  sglang.clear_server_args();
  EXPECT_EQ(sglang.ShortDebugString(),
            "active_requests: 8 uptime_seconds: 1 sglang_version: \"1.2.3\" server_type: \"grpc\" "
            "start_time { } max_total_num_tokens: 400");
}

TYPED_TEST(Answers, TheModelIsThatOfItsFiles) {
  ModelFiles model;
  model.directory = "/models/m";
  model.vocab_size = 324;
  model.eos_token_ids = {2, 7};
  model.bos_token_id = 1;
  model.pad_token_id = 3;
  model.model_type = "llama";
  model.architectures = {"LlamaForCausalLM"};
  const auto expected = bfio::testing::FromText<typename TypeParam::GetModelInfoResponse>(R"(
      model_path: "/models/m" is_generation: true max_context_length: 4096 vocab_size: 324
      served_model_name: "m" tokenizer_path: "/models/m" model_type: "llama" architectures: "LlamaForCausalLM"
      eos_token_ids: [2, 7] pad_token_id: 3 bos_token_id: 1 max_req_input_len: 4096)");
  EXPECT_EQ(this->Model(&model, {true, 4096}).ShortDebugString(), expected.ShortDebugString());
  const auto without_files = this->Model(nullptr, {});
  EXPECT_EQ(without_files.served_model_name(), "m");
  EXPECT_EQ(without_files.tokenizer_path(), "");
  EXPECT_EQ(static_cast<int>(without_files.max_context_length()), 0);
}

}  // namespace
}  // namespace bfio::router::gateway
