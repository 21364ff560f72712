// Workers' messages and measurements as the edge converts and checks them.
#include "router/worker_link/wire.h"

#include <gmock/gmock.h>

#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/from_text.h"

namespace bfio::router {
namespace {

using bfio::testing::FromText;
using ::testing::ElementsAre;
using ::testing::FieldsAre;
using ::testing::IsEmpty;
using Texts = std::vector<std::pair<std::string, std::string>>;

v1::Hello GoodHello() {
  return FromText<v1::Hello>(R"(
      worker_id: "w0" group: "blue" slots: 8 kv_tokens: 1000 max_sequence_tokens: 500 engine: "sim"
      model: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" version: "1.2.3" service_s: 0.5
      barrier: "star" communicator_offer: "host:1" router_instance: 7 worker_instance: 8 stream: 9
      steps_alone: true logprobs: true active { handle: 42 kv_tokens: 11 generated_tokens: 3 })");
}
absl::StatusOr<StepReport> Report(const std::string& text) {
  return ToStepReport(FromText<v1::StepReport>(text));
}

TEST(ToHello, KeepsAllFields) {
  const auto hello = ToHello(GoodHello());
  ASSERT_TRUE(hello.ok()) << hello.status();
  EXPECT_EQ(std::tie(hello->worker_id, hello->group, hello->model, hello->slots, hello->kv_tokens,
                     hello->max_sequence_tokens, hello->engine, hello->version, hello->service_s),
            std::tuple("w0", "blue", std::string(64, 'a'), 8, 1000, 500, "sim", "1.2.3", 0.5));
  EXPECT_EQ(std::tie(hello->barrier, hello->communicator_offer, hello->router_instance,
                     hello->worker_instance, hello->stream, hello->steps_alone, hello->logprobs),
            std::tuple("star", "host:1", 7, 8, 9, true, true));
  EXPECT_THAT(hello->active, ElementsAre(FieldsAre(42, 11, 3)));
}

TEST(ToHello, NamesFieldValueAndLimit) {
  const auto changed = [](const std::string& change) { return ToHello(FromText(change, GoodHello())); };
  const std::string not_hex = "model must be 64 lower-case hexadecimal digits, or empty";
  const auto with = [](const char* field, size_t count, char letter) {
    return absl::StrCat(field, ": '", std::string(count, letter), "'");
  };
  for (const auto& [change, refusal] : Texts{
           {"worker_id: ''", "worker_id's length is 0; must be within 1..256 bytes"},
           {with("group", 65, 'g'), "group's length is 65; must be at most 64 bytes"},
           {with("barrier", 65, 'b'), "barrier's length is 65; must be at most 64 bytes"},
           {with("model", 63, 'a'), not_hex},
           {with("model", 65, 'a'), not_hex},
           {with("model", 64, 'g'), not_hex},
           {"slots: 65537", "slots is 65537; must be within 1..65536"},
           {"kv_tokens: 0", "kv_tokens is 0; must be within 1..1099511627776"},
           {"max_sequence_tokens: 0", "max_sequence_tokens is 0; must be at least 1"},
           {"service_s: nan", "service_s is nan; it must be 0 or within 1e-9..1e9"},
       }) {
    EXPECT_EQ(changed(change).status(), absl::InvalidArgumentError(refusal)) << change;
  }
  EXPECT_EQ(changed("model: ''")->model, "") << "of a worker that does not tell";
  EXPECT_EQ(changed("max_sequence_tokens: 18446744073709551615")->max_sequence_tokens,
            std::numeric_limits<int64_t>::max());
}

TEST(ToEpochReady, KeepsAllFields) {
  const EpochReady ready = *ToEpochReady(FromText<v1::EpochReady>(
      "epoch: 4 error: 'no' communicator_offer: 'next' active { handle: 9 } missing_ranks: 2"));
  EXPECT_EQ(std::tie(ready.epoch, ready.error, ready.communicator_offer), std::tuple(4, "no", "next"));
  EXPECT_THAT(ready.active, ElementsAre(FieldsAre(9, 0, 0)));
  EXPECT_THAT(ready.missing_ranks, ElementsAre(2));
}

TEST(ToStepReport, KeepsAllFields) {
  const auto report = Report(R"(
      step: 3 applied_plan: 2 load_tokens: 77 handles: [5, 6] token_counts: [2, 1] token_ids: [100, 101, 102]
      finished { handle: 6 reason: FINISH_REASON_STOP } finished { handle: 5 } preempted: [8, 9]
      rejected { handle: 7 code: 8 message: "no room" } local_ns: 5 barrier_wait_ns: 18446744073709551615
      group_max_local_ns: 7 gap_ns: 0 token_budget: 512 prefill_tokens: 17
      pending_prompts { handle: 8 tokens: 30 })");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(std::tie(report->step, report->applied_plan, report->load_tokens, report->prefill_tokens),
            std::tuple(3, 2, 77, 17));
  EXPECT_THAT(report->tokens, ElementsAre(FieldsAre(5, 2), FieldsAre(6, 1)));
  EXPECT_THAT(report->token_ids, ElementsAre(100, 101, 102));
  EXPECT_THAT(report->finished, ElementsAre(FieldsAre(6, FinishReason::kStop, std::nullopt),
                                            FieldsAre(5, FinishReason::kLength, std::nullopt)));
  EXPECT_THAT(report->rejected, ElementsAre(FieldsAre(7, absl::ResourceExhaustedError("no room"))));
  EXPECT_THAT(report->preempted, ElementsAre(8, 9));
  EXPECT_EQ(report->local, absl::Nanoseconds(5));
  EXPECT_EQ(report->barrier_wait, absl::Nanoseconds(std::numeric_limits<int64_t>::max()));
  EXPECT_EQ(report->group_max_local, absl::Nanoseconds(7));
  EXPECT_EQ(report->gap, absl::ZeroDuration());
  EXPECT_EQ(report->prefill, (core::PrefillReport{512, {{8, 30}}}));
  const auto without = Report("handles: 5 token_ids: 100");
  EXPECT_THAT(without->tokens, ElementsAre(FieldsAre(5, 1))) << "one per handle";
  EXPECT_FALSE(without->gap || without->prefill || without->cost || without->energy);
}

TEST(ToStepReport, LogprobsAreThoseOfARequestsTokens) {
  const std::string tokens = "handles: [7, 8, 9] token_ids: [70, 80, 90]";
  const auto with = [&](const std::string& logprobs) { return Report(tokens + logprobs); };
  const std::string good = "token_logprobs: -1 top_token_ids: 5 top_logprobs: -0.5";
  const std::string one = absl::StrCat("logprobs { index: 1 logprobs { ", good, " } }");
  const auto report = with(one);
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->logprobs.size(), 1u);
  EXPECT_EQ(report->logprobs[0].index, 1u);
  EXPECT_THAT(report->logprobs[0].logprobs.tokens, ElementsAre(-1));
  EXPECT_THAT(report->logprobs[0].logprobs.top, ElementsAre(TopToken{5, -0.5}));
  for (const auto& [bad, why] :
       Texts{{absl::StrCat("logprobs { index: 3 logprobs { ", good, " } }"), "no such handle"},
             {one + one, "named twice"},
             {absl::StrCat("logprobs { index: 1 logprobs { token_logprobs: -2 ", good, " } }"),
              "more than tokens"},
             {"logprobs { index: 1 }", "none"},
             {absl::StrCat("logprobs { index: 1 logprobs { top_token_ids: 6 ", good, " } }"),
              "an id without its value"}})
    EXPECT_TRUE(absl::IsInvalidArgument(with(bad).status())) << why;
}

TEST(ToStepReport, ContradictionsAreRefused) {
  const std::string range = "step, applied_plan, load_tokens or prefill_tokens is out of range";
  for (const auto& [report, refusal] : Texts{
           {"handles: 1", "the report counts 1 tokens and carries 0"},
           {"handles: 1 token_counts: [2, 2]", "token_counts and handles differ in length"},
           {"load_tokens: 18446744073709551615", range},
           {"prefill_tokens: 2199023255552", range},
           {"pending_prompts { handle: 8 }", "a pending prompt has no tokens left to compute"},
           {"handles: [1, 2] token_ids: [0, 0] completion_hints: 0",
            "completion_hints and handles differ in length"},
           {"rejected { handle: 7 }", "a rejection carries code 0"},
           {"rejected { handle: 7 code: 8 } finished { handle: 7 }",
            "a request is both rejected and finished"},
           {"preempted: 8 finished { handle: 8 }", "a request is both preempted and finished or rejected"},
       }) {
    EXPECT_EQ(Report(report).status(), absl::InvalidArgumentError(refusal)) << report;
  }
}

TEST(Lists, AreAtMostSlotsLong) {
  for (const char* list : {"handles: [1, 2] token_ids: [1, 2]", "finished {} finished {}",
                           "preempted: [1, 2]", "rejected { code: 8 } rejected { code: 8 }",
                           "token_budget: 1 pending_prompts { tokens: 1 } pending_prompts { tokens: 1 }"}) {
    const auto report = FromText<v1::StepReport>(list);
    EXPECT_TRUE(ToStepReport(report, 2).ok()) << list;
    EXPECT_TRUE(absl::IsInvalidArgument(ToStepReport(report, 1).status())) << list;
  }
  const auto ready = FromText<v1::EpochReady>("active {} active {}");
  EXPECT_TRUE(ToEpochReady(ready, 2).ok());
  EXPECT_EQ(ToEpochReady(ready, 1).status().message(), "the number of active is 2; must be at most slots, 1");
  EXPECT_TRUE(absl::IsInvalidArgument(
      ToHello(FromText<v1::Hello>(
                  "worker_id: 'w' slots: 1 kv_tokens: 9 max_sequence_tokens: 9 active {} active {}"))
          .status()));
}

TEST(ToStepReport, ForwardsHintsThatAreProbabilities) {
  const auto report = Report(
      "handles: [1, 2, 3, 4, 5] token_ids: [0, 0, 0, 0, 0] "
      "completion_hints: [0, 0.25, 1.5, nan, 1]");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->hints, ElementsAre(FieldsAre(1, 0), FieldsAre(2, 0.25), FieldsAre(5, 1)));
}

// --- measurements ---

constexpr char kCost[] = R"(c_s { value: 0.005 standard_error: 1e-5 }
    tl_s_per_token { value: 1e-7 standard_error: 1e-9 })";
constexpr char kBatchCost[] =
    "c_s: 0.01 a_s_per_token: 2e-5 b0_tokens: 64 k1_s_per_pair: 2e-9 k2_s_per_token: 1e-8";
constexpr char kEnergy[] =
    "device: 'x' busy_j: 200 barrier_j: 20 parked_j: 2 busy_s: 3 barrier_s: 4 parked_s: 5 watts: 50";

TEST(Measurements, ValidOnesAreConverted) {
  const auto cost = ToCost(FromText<v1::StepCost>(kCost));
  ASSERT_TRUE(cost.has_value());
  EXPECT_EQ(std::tie(cost->c->value, cost->c->standard_error, cost->tl->value),
            std::tuple(0.005, 1e-5, 1e-7));
  const auto unknown = ToCost(v1::StepCost());
  EXPECT_TRUE(unknown && !unknown->c && !unknown->tl);
  auto batch = FromText<v1::BatchCost>(kBatchCost);
  EXPECT_DOUBLE_EQ(ToBatchCost(batch)->Seconds({.tokens = 164, .prefill_pairs = 1e6, .decode_context = 1e5}),
                   0.01 + 100 * 2e-5 + 2e-3 + 1e-3);
  batch.clear_k1_s_per_pair();  // older workers do not report it
  EXPECT_EQ(ToBatchCost(batch)->k1_s_per_pair, 0);
  const auto energy = ToEnergy(FromText<v1::Energy>(kEnergy));
  ASSERT_TRUE(energy.has_value());
  EXPECT_THAT(*energy, FieldsAre("x", 200, 20, 2, 3, 4, 5, 50, std::nullopt));
  EXPECT_EQ(ToEnergy(FromText<v1::Energy>(absl::StrCat(kEnergy, " idle_watts: 0")))->idle_watts, 0);
}

TEST(Measurements, InvalidOnesAreDroppedAndTheReportIsKept) {
  for (const char* bad : {"nan", "inf", "-1e-9", "1e30"}) {
    SCOPED_TRACE(bad);
    for (const char* field :
         {"c_s { value: ", "tl_s_per_token { value: ", "tl_s_per_token { standard_error: "})
      EXPECT_FALSE(ToCost(FromText<v1::StepCost>(absl::StrCat(kCost, " ", field, bad, " }")))) << field;
    for (const char* field : {"c_s", "a_s_per_token", "k1_s_per_pair", "k2_s_per_token"})
      EXPECT_FALSE(ToBatchCost(FromText<v1::BatchCost>(absl::StrCat(kBatchCost, " ", field, ": ", bad))))
          << field;
    for (const char* field : {"prefill_pairs", "decode_context"})
      EXPECT_FALSE(ToBatch(FromText<v1::Batch>(absl::StrCat("tokens: 1 ", field, ": ", bad)))) << field;
    for (const char* field : {"busy_j", "parked_s", "watts", "idle_watts"})
      EXPECT_FALSE(ToEnergy(FromText<v1::Energy>(absl::StrCat(kEnergy, " ", field, ": ", bad)))) << field;
  }
  EXPECT_FALSE(ToBatchCost(FromText<v1::BatchCost>(absl::StrCat(kBatchCost, " a_s_per_token: 0"))));
  for (const std::string& device : {std::string(), std::string(1000, 'x')})
    EXPECT_FALSE(ToEnergy(FromText<v1::Energy>(absl::StrCat(kEnergy, " device: '", device, "'"))));
  EXPECT_FALSE(ToBatch(FromText<v1::Batch>("tokens: 18446744073709551615")));
  EXPECT_EQ(ToBatch(FromText<v1::Batch>("tokens: 3 decode_context: 4"))->decode_context, 4);
  const auto report = Report("cost { c_s { value: -1 } batch {} } energy { watts: 1 }");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->cost || report->batch_cost || report->energy);
}

}  // namespace
}  // namespace bfio::router
