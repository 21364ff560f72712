#include "router/frontend/gateway/answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "router/frontend/vllm/vllm_service.h"

namespace bfio::router::gateway {
namespace {

using ::testing::ElementsAre;
using vllm::Wire;
namespace pb = vllm::pb;

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

TEST(Answers, TheLoadIsThatOfAllRanksTogether) {
  const pb::GetLoadsResponse response = *Wire::LoadsResponse(TwoRanks(), RankView::kOne, std::nullopt);
  EXPECT_EQ(response.timestamp(), "1970-01-01T00:00:01.500000+00:00");
  EXPECT_EQ(response.version(), "1.2.3");
  EXPECT_EQ(response.dp_rank_count(), 1);
  ASSERT_EQ(response.loads_size(), 1);
  const pb::SchedulerLoad& load = response.loads(0);
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

TEST(Answers, ARecordHasTheLoadOfAPoll) {
  const common_pb::EngineLoad record = LoadRecords(TwoRanks(), RankView::kOne).at(0);
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
  const common_pb::EngineLoad idle = LoadRecords(Loads(), RankView::kOne).at(0);
  EXPECT_TRUE(idle.has_waiting_uncached_tokens()) << "none wait, which is not: unknown";
}

TEST(Answers, WithoutRanksAllIsZero) {
  const pb::GetLoadsResponse response = *Wire::LoadsResponse(Loads(), RankView::kOne, 0);
  ASSERT_EQ(response.loads_size(), 1) << "a gateway takes an empty answer for a dead engine";
  EXPECT_EQ(response.loads(0).token_usage(), 0);
  EXPECT_EQ(LoadRecords(Loads(), RankView::kOne).at(0).token_usage(), 0);
}

TEST(Answers, NumbersAreClampedToTheWiresRange) {
  Loads loads = TwoRanks();
  loads.loads[0].max_tokens = int64_t{1} << 40;
  EXPECT_EQ(Wire::LoadsResponse(loads, RankView::kOne, 0)->loads(0).max_total_num_tokens(),
            std::numeric_limits<int32_t>::max());
}

TEST(Answers, TheServerIsOneEngine) {
  const pb::GetServerInfoResponse response =
      Wire::ServerInfo(TwoRanks(), RankView::kOne, absl::Milliseconds(2'500), {});
  EXPECT_EQ(response.active_requests(), 8u);
  EXPECT_EQ(response.uptime_seconds(), 2.5);
  EXPECT_EQ(response.server_type(), "vllm-grpc");
  EXPECT_EQ(response.data_parallel_size(), 1);
  EXPECT_EQ(response.max_num_seqs(), 12);
  EXPECT_EQ(response.block_size(), 0) << "of which workers tell nothing";
  EXPECT_EQ(response.model_dtype(), "");
}

TEST(Answers, EachRankIsShownWhereTheGatewayMayChoose) {
  Loads loads = TwoRanks();
  const pb::GetServerInfoResponse server =
      Wire::ServerInfo(loads, RankView::kEach, absl::ZeroDuration(), {16, "bfloat16"});
  EXPECT_EQ(server.block_size(), 16);
  EXPECT_EQ(server.model_dtype(), "torch.bfloat16") << "as vLLM names it";
  EXPECT_EQ(server.data_parallel_size(), 2);
  EXPECT_EQ(server.max_num_seqs(), 6) << "of one rank, as vLLM says";
  const pb::GetLoadsResponse all = *Wire::LoadsResponse(loads, RankView::kEach, std::nullopt);
  EXPECT_EQ(all.dp_rank_count(), 2);
  ASSERT_EQ(all.loads_size(), 2);
  EXPECT_EQ(all.loads(1).dp_rank(), 1);
  EXPECT_EQ(all.loads(1).num_running_reqs(), 1);
  const pb::GetLoadsResponse one = *Wire::LoadsResponse(loads, RankView::kEach, 1);
  ASSERT_EQ(one.loads_size(), 1);
  EXPECT_EQ(one.loads(0).max_total_num_tokens(), 400) << "vLLM adds up the memory of its ranks";
  EXPECT_EQ(one.loads(0).num_used_tokens(), 20);
  EXPECT_EQ(one.loads(0).token_usage(), 0.05) << "of the rank's own";
  EXPECT_TRUE(absl::IsNotFound(Wire::LoadsResponse(loads, RankView::kEach, 2).status()));
  EXPECT_TRUE(absl::IsNotFound(Wire::LoadsResponse(loads, RankView::kEach, -1).status()));
  EXPECT_EQ(LoadRecords(loads, RankView::kEach).at(1).running_requests(), 1u);
  EXPECT_EQ(LoadRecords(loads, RankView::kEach).at(1).num_used_tokens(), 20);
  loads.loads[1].waiting_tokens = 70;
  EXPECT_EQ(Wire::LoadsResponse(loads, RankView::kEach, 1)->loads(0).num_waiting_uncached_tokens(), 70);
  EXPECT_EQ(LoadRecords(loads, RankView::kEach).at(0).waiting_uncached_tokens(), 900u);
  EXPECT_EQ(LoadRecords(loads, RankView::kEach).at(1).waiting_uncached_tokens(), 70u);
}

TEST(Answers, TheModelIsThatOfItsFiles) {
  ModelFiles model;
  model.directory = "/models/m";
  model.vocab_size = 324;
  model.eos_token_ids = {2, 7};
  model.bos_token_id = 1;
  model.pad_token_id = 3;
  model.model_type = "llama";
  model.architectures = {"LlamaForCausalLM"};
  const pb::GetModelInfoResponse response = ModelInfoOf<pb::GetModelInfoResponse>("m", &model, {true, 4096});
  EXPECT_EQ(response.model_path(), "/models/m");
  EXPECT_TRUE(response.is_generation());
  EXPECT_EQ(response.max_context_length(), 4096u);
  EXPECT_EQ(response.vocab_size(), 324u);
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

TEST(Answers, AModelWithoutFilesHasItsName) {
  const pb::GetModelInfoResponse response = ModelInfoOf<pb::GetModelInfoResponse>("m", nullptr, {});
  EXPECT_EQ(response.served_model_name(), "m");
  EXPECT_EQ(response.tokenizer_path(), "");
  EXPECT_EQ(response.max_context_length(), 0u);
}

}  // namespace
}  // namespace bfio::router::gateway
