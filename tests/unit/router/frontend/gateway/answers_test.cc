#include "router/frontend/gateway/answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/unit/router/frontend/gateway/protocols.h"

namespace bfio::router::gateway {
namespace {

using bfio::testing::Sglang;
using bfio::testing::Vllm;
using ::testing::ElementsAre;

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
  static typename P::GetServerInfoResponse Server(const Loads& loads, absl::Duration uptime,
                                                  const std::string& dtype = "") {
    const MessagePtr message = ProtocolFor<P>().ServerInfo(loads, uptime, dtype);
    return static_cast<const typename P::GetServerInfoResponse&>(*message);
  }
  static typename P::GetModelInfoResponse Model(const ModelFiles* model, const Serving& serving) {
    const MessagePtr message = ProtocolFor<P>().ModelInfo("m", model, serving);
    return static_cast<const typename P::GetModelInfoResponse&>(*message);
  }
};
TYPED_TEST_SUITE(Answers, bfio::testing::EngineProtocols, bfio::testing::ProtocolNames);
using VllmAnswers = Answers<Vllm>;
using SglangAnswers = Answers<Sglang>;

TYPED_TEST(Answers, TheLoadIsThatOfAllRanksTogether) {
  const auto response = *this->LoadsAre(TwoRanks(), std::nullopt);
  EXPECT_EQ(response.timestamp(), "1970-01-01T00:00:01.500000+00:00");
  EXPECT_EQ(response.version(), "1.2.3");
  EXPECT_EQ(response.dp_rank_count(), 1);
  ASSERT_EQ(response.loads_size(), 1);
  const auto& load = response.loads(0);
  EXPECT_EQ(load.dp_rank(), 0);
  EXPECT_EQ(load.num_running_reqs(), 4);
  EXPECT_EQ(load.num_waiting_reqs(), 4) << "the pool is one for all";
  EXPECT_EQ(load.num_total_reqs(), 8);
  EXPECT_EQ(load.num_used_tokens(), 60);
  EXPECT_EQ(load.max_total_num_tokens(), 400);
  EXPECT_EQ(load.token_usage(), 0.15);
  EXPECT_EQ(load.gen_throughput(), 20);
  EXPECT_EQ(load.cache_hit_rate(), 0);
  EXPECT_EQ(load.utilization(), 0.15);
  EXPECT_EQ(load.max_running_requests(), 12);
  EXPECT_EQ(load.num_waiting_uncached_tokens(), 900) << "the pool is one for all";
}

TEST(LoadRecords, ARecordHasTheLoadOfAPoll) {
  const common_pb::EngineLoad record = LoadRecord(TwoRanks());
  EXPECT_EQ(record.running_requests(), 4u);
  EXPECT_EQ(record.waiting_requests(), 4u);
  EXPECT_EQ(record.token_usage(), 0.15);
  EXPECT_EQ(record.active_token_usage(), 0.15);
  EXPECT_EQ(record.gen_throughput(), 20);
  EXPECT_EQ(record.max_running_requests(), 12u);
  EXPECT_TRUE(record.load_only());
  EXPECT_EQ(record.num_used_tokens(), 60);
  EXPECT_EQ(record.max_total_num_tokens(), 400);
  EXPECT_EQ(record.waiting_uncached_tokens(), 900u);
  EXPECT_FALSE(record.has_prefill_pending_tokens()) << "how long the engine is silent is not told";
  const common_pb::EngineLoad idle = LoadRecord(Loads());
  EXPECT_TRUE(idle.has_waiting_uncached_tokens()) << "none wait, which is not: unknown";
}

TYPED_TEST(Answers, WithoutRanksAllIsZero) {
  const auto response = *this->LoadsAre(Loads(), 0);
  ASSERT_EQ(response.loads_size(), 1) << "a gateway takes an empty answer for a dead engine";
  EXPECT_EQ(response.loads(0).token_usage(), 0);
  EXPECT_EQ(LoadRecord(Loads()).token_usage(), 0);
}

TYPED_TEST(Answers, NumbersAreClampedToTheWiresRange) {
  Loads loads = TwoRanks();
  loads.loads[0].max_tokens = int64_t{1} << 40;
  EXPECT_EQ(this->LoadsAre(loads, 0)->loads(0).max_total_num_tokens(), std::numeric_limits<int32_t>::max());
}

TEST_F(VllmAnswers, TheServerIsOneEngine) {
  const auto response = this->Server(TwoRanks(), absl::Milliseconds(2'500));
  EXPECT_EQ(response.active_requests(), 8u);
  EXPECT_EQ(response.uptime_seconds(), 2.5);
  EXPECT_EQ(response.server_type(), "vllm-grpc");
  EXPECT_EQ(response.data_parallel_size(), 1);
  EXPECT_EQ(response.max_num_seqs(), 12);
  EXPECT_EQ(response.block_size(), 0) << "unknown";
  EXPECT_EQ(response.model_dtype(), "");
}

TEST_F(VllmAnswers, FactsOfTheModelAreNamedAsVllmNamesThem) {
  const auto server = Server(TwoRanks(), absl::ZeroDuration(), "bfloat16");
  EXPECT_EQ(server.model_dtype(), "torch.bfloat16");
}

TEST_F(SglangAnswers, TheServerIsOneEngineAndItsLoadsAreSummedUp) {
  const auto server = Server(TwoRanks(), absl::Milliseconds(1'000));
  EXPECT_EQ(server.active_requests(), 8);
  EXPECT_EQ(server.uptime_seconds(), 1);
  EXPECT_EQ(server.start_time().seconds(), 0);
  EXPECT_EQ(server.server_type(), "grpc");
  EXPECT_EQ(server.sglang_version(), "1.2.3");
  EXPECT_EQ(server.max_total_num_tokens(), 400);
  EXPECT_EQ(Sglang::Ranks(server), 1);
  EXPECT_EQ(Sglang::Slots(server), 12);
  const Sglang::GetLoadsResponse loads = *LoadsAre(TwoRanks(), std::nullopt);
  EXPECT_EQ(loads.aggregate().total_running_reqs(), 4);
  EXPECT_EQ(loads.aggregate().total_waiting_reqs(), 4);
  EXPECT_EQ(loads.aggregate().total_reqs(), 8);
  EXPECT_DOUBLE_EQ(loads.aggregate().avg_token_usage(), 0.15);
  EXPECT_EQ(loads.aggregate().avg_throughput(), 20);
  EXPECT_DOUBLE_EQ(loads.aggregate().avg_utilization(), 0.15);
}

TYPED_TEST(Answers, OnlyRankZeroExists) {
  EXPECT_EQ(this->LoadsAre(TwoRanks(), 0)->loads_size(), 1);
  EXPECT_TRUE(absl::IsNotFound(this->LoadsAre(TwoRanks(), 1).status()));
  EXPECT_TRUE(absl::IsNotFound(this->LoadsAre(TwoRanks(), -1).status()));
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
  const auto response = this->Model(&model, {true, 4096});
  EXPECT_EQ(response.model_path(), "/models/m");
  EXPECT_TRUE(response.is_generation());
  EXPECT_EQ(static_cast<int>(response.max_context_length()), 4096);
  EXPECT_EQ(static_cast<int>(response.vocab_size()), 324);
  EXPECT_FALSE(response.supports_vision());
  EXPECT_EQ(response.served_model_name(), "m");
  EXPECT_EQ(response.tokenizer_path(), "/models/m");
  EXPECT_EQ(response.model_type(), "llama");
  EXPECT_THAT(response.architectures(), ElementsAre("LlamaForCausalLM"));
  EXPECT_THAT(response.eos_token_ids(), ElementsAre(2, 7));
  EXPECT_EQ(response.pad_token_id(), 3);
  EXPECT_EQ(response.bos_token_id(), 1);
  EXPECT_EQ(response.max_req_input_len(), 4096);
}

TYPED_TEST(Answers, AModelWithoutFilesHasItsName) {
  const auto response = this->Model(nullptr, {});
  EXPECT_EQ(response.served_model_name(), "m");
  EXPECT_EQ(response.tokenizer_path(), "");
  EXPECT_EQ(static_cast<int>(response.max_context_length()), 0);
}

}  // namespace
}  // namespace bfio::router::gateway
