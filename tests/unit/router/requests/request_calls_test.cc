// Calls of several outputs: each output is a request, and the call is accepted, named and aborted as one.
#include <vector>

#include "tests/unit/router/requests/request_lifecycle_fixture.h"

namespace bfio::router {
namespace {

using absl::StatusCode;

TEST_F(RequestLifecycleTest, ACallHasItsNameUntilItsLastOutputEndsAndIsAbortedAsOne) {
  OpenEpoch();
  const std::vector<Client*> clients = ArriveAll(Request("a", 1), 3);
  Place();
  const auto end = [&](Client& client) {
    Tokens(client, {1});
    Finish(client);
  };
  end(*clients[0]);
  const auto taken = absl::AlreadyExistsError("a request is already running with the request_id a");
  EXPECT_EQ(Arrive(Request("a")).status, taken);
  for (const Client* again : ArriveAll(Request("a"), 3)) EXPECT_EQ(again->status, taken);
  EXPECT_TRUE(Arrive(Request("a/1")).open()) << "a name like any other";
  EXPECT_TRUE(clients[1]->open());
  EXPECT_TRUE(Abort("a"));
  for (const size_t i : {1, 2}) EXPECT_EQ(clients[i]->finish->reason, FinishReason::kAbort);
  EXPECT_EQ(clients[0]->finish->reason, FinishReason::kLength);
  EXPECT_EQ(totals().aborted, 2);
  EXPECT_FALSE(Abort("a"));
  const std::vector<Client*> more = ArriveAll(Request("a", 1), 2);
  Place();
  for (Client* client : more) end(*client);
  EXPECT_TRUE(Arrive(Request("a")).open()) << "whether or not the client has read the outputs";
}

TEST_F(RequestLifecycleTest, ACallIsAcceptedWholeOrNotAtAll) {
  Start({}, {.max_waiting = 8}, "t:tps=100");
  OpenEpoch();
  ClientRequest call = Request("a", 10, "t");
  for (const char* name : {"b", "c", "d", "e", "f"}) Arrive(Request(name));
  for (const Client* client : ArriveAll(call, 3))
    EXPECT_THAT(*client, EndsForNow(StatusCode::kResourceExhausted, ""));
  EXPECT_EQ(totals().refused_pool_full, 1);
  EXPECT_EQ(totals().accepted, 5);
  EXPECT_EQ(requests_->live(), 5);
  EXPECT_EQ(cluster_->waiting(), 5);
  EXPECT_EQ(overload_->committed_kv(), 5 * 13);
  call.max_new_tokens = 97;
  EXPECT_TRUE(tenants_->Enter(call, now_).ok()) << "its tenant has paid nothing";
  for (const char* name : {"b", "c", "d", "e", "f"}) EXPECT_TRUE(Abort(name));
  EXPECT_TRUE(ArriveAll(call, 3)[2]->open()) << "nor is its name taken";
}

TEST_F(RequestLifecycleTest, TheFirstCallIsAcceptedWhateverItsSize) {
  Start({}, {.max_waiting_kv = 1});
  OpenEpoch();
  // 5 times 403 tokens are more than twice the 1000 that the worker has.
  for (const Client* client : ArriveAll(Request("a", 400), 5)) EXPECT_TRUE(client->open()) << *client->status;
  EXPECT_TRUE(Abort("a"));
  EXPECT_TRUE(Arrive(Request("b")).open());
  EXPECT_TRUE(absl::IsResourceExhausted(*ArriveAll(Request("a", 400), 5)[0]->status));
}

TEST(OverloadControl, ACallThatNoPoolHoldsIsInvalid) {
  OverloadControl control({.max_waiting = 10});
  EXPECT_TRUE(control.CheckPool("", 10, /*held=*/false).ok());
  EXPECT_EQ(control.CheckPool("", 11, false),
            absl::InvalidArgumentError(
                "n is 11; must be at most 10, the requests that may wait at a time (--max_waiting)"));
  EXPECT_TRUE(control.CheckPool("", 5, /*held=*/true).ok());
  EXPECT_EQ(control.CheckPool("", 6, true),
            absl::InvalidArgumentError("n is 6; must be at most 5, the requests that may wait with a "
                                       "data_parallel_rank (--max_waiting)"));
  control.SetWaiting(7);
  EXPECT_TRUE(control.CheckPool("", 3, false).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(control.CheckPool("", 4, false)));
}

}  // namespace
}  // namespace bfio::router
