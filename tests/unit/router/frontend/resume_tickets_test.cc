#include "router/frontend/resume_tickets.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace bfio::router {
namespace {

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

}  // namespace
}  // namespace bfio::router
