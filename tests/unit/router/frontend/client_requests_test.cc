// Requests of clients as they are read, and the tickets with which they resume.
#include "router/frontend/inference_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/testing/from_text.h"

namespace bfio::router {
namespace {

using bfio::testing::FromText;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const absl::Time kIssuedAt = absl::FromUnixSeconds(1'800'000'000);

ResumeTickets Tickets(char key = 'k') {
  return ResumeTickets(*TicketKeys::Parse(std::string(32, key), "keys"), absl::Seconds(30));
}

constexpr char kModel[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

std::string Issue(const ResumeTickets& tickets, const ClientRequest& request, absl::Time deadline,
                  absl::Time now, absl::string_view model = kModel) {
  const ResumeTickets::Issue issue = tickets.Prepare(request, deadline, now);
  return issue == nullptr ? "" : issue(model);
}

ClientRequest Sent() {
  ClientRequest request;
  request.request_id = "r1";
  request.tenant = "acme";
  request.prompt = {5, 6, 7};
  request.prompt_tokens = 3;
  request.max_new_tokens = 10;
  request.priority = 2;
  request.resumable = true;
  request.resume_token = "secret";
  return request;
}

ClientRequest Resumed() {
  ClientRequest request = Sent();
  request.resume_from = 2;
  request.received = {1, 2};
  return request;
}

TEST(ResumeTickets, ProveThatTheSameRequestWasAcceptedAndItsModel) {
  for (const std::string model : {"", "m", kModel}) {
    const std::string ticket = Issue(Tickets(), Sent(), absl::InfiniteFuture(), kIssuedAt, model);
    EXPECT_EQ(Tickets().ModelOf(ticket, Resumed(), kIssuedAt), model) << "to the next router, too";
    EXPECT_FALSE(Tickets('x').ModelOf(ticket, Resumed(), kIssuedAt));
  }
  EXPECT_FALSE(Tickets().ModelOf("", Resumed(), kIssuedAt));
}

TEST(ResumeTickets, AreOfNoUseForAnyOtherRequest) {
  const std::string ticket = Issue(Tickets(), Sent(), absl::InfiniteFuture(), kIssuedAt);
  const std::vector<std::pair<const char*, std::function<void(ClientRequest&)>>> changes = {
      {"tenant", [](ClientRequest& r) { r.tenant = "zeta"; }},
      {"request_id", [](ClientRequest& r) { r.request_id = "r2"; }},
      {"a text that runs over into the next",
       [](ClientRequest& r) { std::tie(r.tenant, r.request_id) = std::pair("acm", "er1"); }},
      {"resume_token", [](ClientRequest& r) { r.resume_token = "Secret"; }},
      {"prompt", [](ClientRequest& r) { r.prompt[1] = 7; }},
      {"a longer prompt", [](ClientRequest& r) { r.prompt.push_back(1), ++r.prompt_tokens; }},
      {"no prompt ids", [](ClientRequest& r) { r.prompt.clear(); }},
      {"max_new_tokens", [](ClientRequest& r) { r.max_new_tokens = 11; }},
      {"priority", [](ClientRequest& r) { r.priority = 3; }},
      {"no prompt", [](ClientRequest& r) { r.prompt.clear(), r.prompt_tokens = 0; }}};
  for (const auto& [what, change] : changes) {
    ClientRequest other = Resumed();
    change(other);
    EXPECT_FALSE(Tickets().ModelOf(ticket, other, kIssuedAt)) << what;
  }
}

TEST(ResumeTickets, AreGoodForAsLongAsTheCallMayRunAndALittleBeyond) {
  const std::string short_call = Issue(Tickets(), Sent(), kIssuedAt + absl::Minutes(5), kIssuedAt);
  EXPECT_TRUE(Tickets().ModelOf(short_call, Resumed(), kIssuedAt + absl::Seconds(329)));
  EXPECT_FALSE(Tickets().ModelOf(short_call, Resumed(), kIssuedAt + absl::Seconds(330)));
  const std::string endless = Issue(Tickets(), Sent(), absl::InfiniteFuture(), kIssuedAt);
  EXPECT_TRUE(Tickets().ModelOf(endless, Resumed(), kIssuedAt + absl::Hours(1)));
  EXPECT_FALSE(Tickets().ModelOf(endless, Resumed(), kIssuedAt + absl::Hours(1) + absl::Seconds(30)));
}

TEST(ResumeTickets, AreIssuedOnlyToChargedRequests) {
  ClientRequest request = Sent();
  EXPECT_EQ(Issue(ResumeTickets(), request, absl::InfiniteFuture(), kIssuedAt), "") << "there is no key";
  request.resumable = false;
  EXPECT_EQ(Issue(Tickets(), request, absl::InfiniteFuture(), kIssuedAt), "");
  // Without proof, the stream may belong to a smaller request with the same name.
  EXPECT_EQ(Issue(Tickets(), Resumed(), absl::InfiniteFuture(), kIssuedAt), "");
  ClientRequest proven = Resumed();
  proven.resume_proven = true;
  EXPECT_NE(Issue(Tickets(), proven, absl::InfiniteFuture(), kIssuedAt), "");
}

// --- generate request ---

v1::GenerateRequest Good(const std::string& changes = "") {
  return FromText<v1::GenerateRequest>("prompt_length: 10 max_new_tokens: 5 " + changes);
}

std::string Refusal(const v1::GenerateRequest& request) {
  const absl::Status status = ToClientRequest(request, RequestLimits()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(ToClientRequest, KeepsEveryField) {
  const auto to = ToClientRequest(
      Good(R"(token_ids { ids: [5, 6, 7] } request_id: "r" tenant: "acme" stop_token_ids: 9 ignore_eos: true
              sampling { temperature: 0.5 top_p: 0.25 top_k: 3 seed: 77 } priority: -4
              predicted_output_tokens: 2 resumable: true resume_token: "secret" resume_from_index: 1
              received_token_ids: 8 parent_id: "p" stage: 2 remaining_tokens: 40
              ttft_objective { nanos: 1 } parent_timeout { seconds: 3 })"),
      RequestLimits());
  ASSERT_TRUE(to.ok()) << to.status();
  EXPECT_EQ(std::tie(to->request_id, to->tenant, to->prompt_tokens, to->max_new_tokens, to->ignore_eos,
                     to->priority, to->predicted_output_tokens),
            std::tuple("r", "acme", 3, 5, true, -4, 2u));
  EXPECT_EQ(std::tie(to->sampling.temperature, to->sampling.top_p, to->sampling.top_k, to->sampling.seed),
            std::tuple(0.5f, 0.25f, 3u, 77u));
  EXPECT_EQ(std::tie(to->resumable, to->resume_token, to->resume_from, to->parent_id, to->stage,
                     to->remaining_tokens, to->ttft_objective, to->parent_timeout),
            std::tuple(true, "secret", 1u, "p", 2u, 40u, absl::Nanoseconds(1), absl::Seconds(3)));
  EXPECT_THAT(to->prompt, ElementsAre(5, 6, 7));
  EXPECT_THAT(to->stop_token_ids, ElementsAre(9));
  EXPECT_THAT(to->received, ElementsAre(8));
}

TEST(ToClientRequest, AbsentFieldsStayUnset) {
  const auto to = ToClientRequest(Good(), RequestLimits());
  ASSERT_TRUE(to.ok()) << to.status();
  EXPECT_THAT(to->prompt, IsEmpty());
  EXPECT_EQ(to->prompt_tokens, 10u);
  EXPECT_FALSE(to->sampling.temperature || to->sampling.top_p || to->sampling.top_k || to->sampling.seed);
  EXPECT_FALSE(to->predicted_output_tokens || to->resume_from || to->stage || to->remaining_tokens);
  EXPECT_FALSE(to->ttft_objective || to->parent_timeout);
}

TEST(ToClientRequest, RefusalsNameFieldValueAndLimit) {
  v1::GenerateRequest request = Good();
  request.clear_prompt_length();
  EXPECT_EQ(Refusal(request), "prompt is missing; set token_ids or prompt_length");
  // A malformed duration is shown as it came. A prompt that has no length is not left out.
  const std::string length = "prompt_length is 0; must be within 1..131072", objective = "ttft_objective ";
  for (const auto& [changes, refusal] : std::vector<std::pair<std::string, std::string>>{
           {"token_ids {}", "the number of token_ids is 0; must be within 1..131072"},
           {"prompt_length: 0", length},
           {"prompt_length: 0 resume_from_index: 1", length},
           {"max_new_tokens: 65537", "max_new_tokens is 65537; must be within 1..65536"},
           {objective + "{ seconds: 3600 nanos: 1 }",
            objective + "is 3600 s and 1 ns; must be above 0 and at most 1 h"},
           {objective + "{ seconds: -1 nanos: 1 }",
            objective + "is -1 s and 1 ns; must be above 0 and at most 1 h"},
           {objective + "{ nanos: 1000000000 }",
            objective + "is 0 s and 1000000000 ns; must be above 0 and at most 1 h"},
           {"parent_id: 'p' parent_timeout { seconds: 86401 }",
            "parent_timeout is 86401 s and 0 ns; must be above 0 and at most 24 h"},
       })
    EXPECT_EQ(Refusal(Good(changes)), refusal) << changes;
  EXPECT_TRUE(ToClientRequest(Good(objective + "{ seconds: 3600 }"), RequestLimits()).ok());
}

TEST(ToClientRequest, APromptOfIdsIsNamedWhereRequestsGoToEngines) {
  RequestLimits limits;
  v1::GenerateRequest request = Good();
  std::vector<uint32_t> ids;
  for (uint32_t i = 0; i < 200; ++i) ids.push_back(7 * i);
  request.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  EXPECT_EQ(ToClientRequest(request, limits)->prefix, nullptr);
  limits.name_prefixes = true;
  const auto converted = ToClientRequest(request, limits);
  ASSERT_TRUE(converted.ok() && converted->prefix != nullptr) << converted.status();
  EXPECT_EQ(*converted->prefix, *core::NamePrefixBlocks(ids));
  EXPECT_EQ(converted->prompt_bytes(), 4 * 200 + 8 * 3) << "of whole blocks";
  EXPECT_EQ(OutputOf(*converted, 1).prefix, converted->prefix) << "one copy for all outputs";
  EXPECT_EQ(ToClientRequest(Good(), limits)->prefix, nullptr) << "of a length nothing is known";
}

TEST(ToClientRequest, ABareResumeKeepsOnlyItsRelevantFields) {
  const auto to = ToClientRequest(
      FromText<v1::GenerateRequest>(R"(request_id: "r" tenant: "acme" resumable: true resume_token: "secret"
          resume_from_index: 3 max_new_tokens: 1000000000 stop_token_ids: 1 priority: 100000)"),
      RequestLimits());
  ASSERT_TRUE(to.ok()) << to.status();
  EXPECT_EQ(std::tie(to->request_id, to->tenant, to->resumable, to->resume_token, to->resume_from,
                     to->max_new_tokens, to->priority),
            std::tuple("r", "acme", true, "secret", 3u, 0, 0));
  EXPECT_FALSE(to->has_prompt());
  EXPECT_THAT(to->stop_token_ids, IsEmpty());
}

TEST(ToClientRequest, TheServicesNamesAreCheckedToo) {
  EXPECT_EQ(ToClientRequest(Good(), "r", "acme", RequestLimits())->tenant, "acme");
  EXPECT_EQ(ToClientRequest(Good(), "r", std::string(129, 't'), RequestLimits()).status().message(),
            "tenant's length is 129; must be at most 128 bytes");
}

}  // namespace
}  // namespace bfio::router
