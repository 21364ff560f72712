// The tools of the chaos run detect violations, and disturb what they should: a schedule that repeats, an
// audit, a watch, a proxy that follows its commands, attacks that reach their targets.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "tests/chaos/attack.h"
#include "tests/chaos/audit.h"
#include "tests/chaos/client_load.h"
#include "tests/chaos/greedy_peer.h"
#include "tests/chaos/harmless_watch.h"
#include "tests/chaos/schedule.h"
#include "tests/chaos/tcp_proxy.h"
#include "tests/testing/process.h"
#include "worker/barrier/star/star_endpoint.h"

namespace bfio::chaos {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

TEST(Schedule, RepeatsForItsSeedAndHasEveryKindAtTheRequestedRate) {
  const auto draw = [](uint64_t seed) {
    return DrawSchedule(
        {seed, 8, absl::Seconds(5), absl::Minutes(100), absl::Seconds(5), absl::Seconds(1), AllFaults()});
  };
  const auto text = [&](uint64_t seed) {
    std::string text;
    for (const Fault& fault : draw(seed)) absl::StrAppend(&text, Describe(fault), "\n");
    return text;
  };
  EXPECT_EQ(text(3), text(3));
  EXPECT_NE(text(3), text(4));
  std::map<FaultKind, int> kinds;
  const std::vector<Fault> faults = draw(1);
  for (const Fault& fault : faults) {
    ++kinds[fault.kind];
    EXPECT_GE(fault.at, absl::Seconds(5));
    EXPECT_LT(fault.at, absl::Minutes(100));
    EXPECT_NE(fault.worker, fault.peer);
  }
  EXPECT_EQ(kinds.size(), AllFaults().size());
  // 1,199 expected; six standard deviations.
  EXPECT_NEAR(static_cast<double>(faults.size()), 1199, 208);
}

TEST(Audit, PausesAndDeathsNeedFaultsThatExplainThem) {
  const std::vector<Disturbance> faults = {{At(10), absl::Seconds(3)},
                                           {At(12), absl::Seconds(3)},
                                           {At(14), absl::Seconds(3)},
                                           {At(30), absl::Seconds(5)}};
  const absl::Duration patience = absl::Seconds(3);
  const auto hangs = [&](double begin, double end) {
    return !Hangs({{1, At(begin), At(end)}}, faults, patience).empty();
  };
  EXPECT_FALSE(hangs(0, 2.9));
  EXPECT_TRUE(hangs(0, 3.1)) << "nothing explains it";
  EXPECT_FALSE(hangs(8, 14.9)) << "2.9 s from the second fault";
  EXPECT_FALSE(hangs(9, 16.9)) << "a third fault in it";
  EXPECT_TRUE(hangs(9, 17.1));
  EXPECT_TRUE(hangs(14.5, 17.6)) << "faults before it explain nothing";
  EXPECT_FALSE(hangs(29, 34.9)) << "one that may take longer";
  EXPECT_TRUE(hangs(29, 35.1));
  const auto wrongly_ended = [&](double begin, double end) {
    return !WronglyEnded({{1, At(begin), At(end)}}, faults, patience).empty();
  };
  EXPECT_FALSE(wrongly_ended(9, 15));
  EXPECT_FALSE(wrongly_ended(12.9, 15)) << "one shows late";
  EXPECT_TRUE(wrongly_ended(9, 13.9)) << "the third came after it";
  EXPECT_TRUE(wrongly_ended(13.1, 20));
}

// --- HarmlessWatch ---

constexpr FaultKind kHarmless = FaultKind::kFlood, kOther = FaultKind::kBlockedLog,
                    kHarmful = FaultKind::kCutLink;
constexpr int64_t kBoundKib = 64 << 10;

class Watched : public ::testing::Test {
 protected:
  void Observe(double at, const std::optional<GroupView>& view) { watch_.Observe(view, At(at)); }
  void Begin(FaultKind kind, double at) { watch_.Begin(kind, At(at)); }
  void End(FaultKind kind, double at) { watch_.End(kind, At(at)); }

  const GroupView well_{7, 8, 100, 1000};
  HarmlessWatch watch_{{.workers = 8, .settle = absl::Seconds(3)}};
};

TEST_F(Watched, AnyChangeUnderAHarmlessFaultIsWrong) {
  const std::vector<std::pair<std::optional<GroupView>, std::string>> cases = {
      {{{7, 8, 100, 1000 + kBoundKib}}, ""},
      {{{8, 8, 100, 1000}}, "is epoch 8 of 8"},
      {{{7, 7, 100, 1000}}, "is epoch 7 of 7"},
      {{{7, 8, 101, 1000}}, "router has ended"},
      {{{7, 8, 100, 1001 + kBoundKib}}, absl::StrCat("grown by ", kBoundKib + 1, " KiB")},
      {std::nullopt, "does not answer"}};
  for (const auto& [view, words] : cases) {
    HarmlessWatch watch({.workers = 8, .settle = absl::Seconds(3)});
    watch.Begin(kHarmless, At(10));
    watch.Observe(well_, At(10));
    watch.Observe(view, At(11));
    EXPECT_THAT(watch.watched(), ElementsAre(Pair(kHarmless, 1)));
    if (words.empty()) {
      EXPECT_THAT(watch.violations(), IsEmpty());
    } else {
      EXPECT_THAT(watch.violations(), ElementsAre(AllOf(HasSubstr("under flood alone"), HasSubstr(words))));
    }
  }
}

TEST_F(Watched, AHarmfulFaultExplainsWhatComesUntilTheGroupHasSettled) {
  Begin(kHarmless, 10);
  Observe(10, GroupView{7, 7, 100, 1000});  // a group that lacks ranks is not compared
  Observe(10, well_);
  Begin(kHarmful, 11);
  End(kHarmful, 12);
  Observe(12, well_);
  Observe(14.9, GroupView{8, 8, 100, 1000});
  EXPECT_THAT(watch_.violations(), IsEmpty());
  Observe(15, GroupView{8, 8, 100, 1000});
  Observe(16, GroupView{9, 8, 100, 1000});
  EXPECT_EQ(watch_.violations().size(), 1u);
  EXPECT_THAT(watch_.watched(), ElementsAre(Pair(kHarmless, 2)));
}

TEST_F(Watched, AnIntervalLastsAsLongAsAnyHarmlessFault) {
  Begin(kHarmless, 10);
  Observe(10, well_);
  Begin(kOther, 11);
  End(kHarmless, 12);
  Observe(13, GroupView{8, 8, 100, 1000});
  EXPECT_THAT(watch_.violations(), ElementsAre(HasSubstr("under blocked-log alone")));
  EXPECT_THAT(watch_.watched(), ElementsAre(Pair(kOther, 1), Pair(kHarmless, 1)));
  End(kOther, 14);
  Observe(20, well_);
  Observe(21, GroupView{9, 8, 100, 1000});
  EXPECT_EQ(watch_.violations().size(), 1u) << "nothing is under way";
}

// --- attacks ---

// With the secret that the intruder tries it joins, and with its own the barrier refuses it.
TEST(BarrierIntruder, ReachesABarrierAndCountsOnlyOneThatItJoined) {
  for (const bool known : {false, true}) {
    auto hub = worker::StarEndpoint::Create({});
    ASSERT_TRUE(hub.ok());
    const absl::StatusOr<std::string> offer = (*hub)->Offer();
    ASSERT_TRUE(offer.ok());
    const std::string address = offer->substr(0, offer->find('/'));
    BarrierIntruder intruder({.barriers = {address}, .world_size = 2, .epoch = 5});
    const std::string id = known ? absl::StrCat(address, "/", std::string(64, '0')) : *offer;
    const absl::Duration time = known ? absl::Seconds(20 * testing::kSlowdown) : absl::Milliseconds(500);
    EXPECT_EQ((*hub)->Form({5, 0, 2, id}, time, {}).ok(), known);
    if (known) testing::Eventually([&] { return intruder.joined() > 0; });
    EXPECT_EQ(intruder.joined(), known);
    EXPECT_EQ(intruder.Check({}).empty(), !known);
    EXPECT_GT(intruder.connections(), 0);
  }
}

// A socket that listens at a free port, and its address.
int ListenOnLoopback(sockaddr_in& address) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(listen(listener, 1024), 0);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  return listener;
}

TEST(Flood, OpensAgainWhatIsClosed) {
  sockaddr_in address{};
  const int listener = ListenOnLoopback(address);
  Flood flood(absl::StrCat("127.0.0.1:", ntohs(address.sin_port)));
  for (int i = 0; i < 300; ++i) close(accept(listener, nullptr, nullptr));
  EXPECT_GE(flood.connections(), 250);
  close(listener);
}

TEST(GreedyPeer, BeginsCallsAndEndsWithThemWhateverAnswers) {
  sockaddr_in address{};
  const int listener = ListenOnLoopback(address);
  const std::string silent = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  GreedyPeer peer({silent, silent, 1});
  EXPECT_TRUE(testing::Eventually([&] { return peer.calls() > 500; }));
  close(listener);
}

// What can be read from a socket within `patience`: text, "closed", "reset" or "nothing".
std::string Read(int fd, absl::Duration patience = absl::Seconds(20)) {
  pollfd set{fd, POLLIN, 0};
  if (poll(&set, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) == 0) return "nothing";
  char buffer[64];
  const ssize_t got = read(fd, buffer, sizeof(buffer));
  if (got < 0) return "reset";
  return got == 0 ? "closed" : std::string(buffer, static_cast<size_t>(got));
}

void Say(int fd, const std::string& text) {
  EXPECT_EQ(send(fd, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
}

TEST(TcpProxy, StallsDelaysHalfClosesAndResetsAConnection) {
  sockaddr_in address{};
  const int listener = ListenOnLoopback(address);
  TcpProxy proxy("127.0.0.1", absl::StrCat("127.0.0.1:", ntohs(address.sin_port)));
  address.sin_port =
      htons(static_cast<uint16_t>(std::stoi(proxy.address().substr(proxy.address().find(':') + 1))));
  const auto ends = [&] {
    const int client = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(connect(client, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return std::pair(client, accept(listener, nullptr, nullptr));
  };
  const auto [client, server] = ends();
  Say(client, "ping");
  EXPECT_EQ(Read(server), "ping");
  Say(server, "pong");
  EXPECT_EQ(Read(client), "pong");
  constexpr absl::Duration kShort = absl::Milliseconds(100);
  proxy.Stall(true);
  absl::SleepFor(kShort);
  Say(client, "stalled");
  EXPECT_EQ(Read(server, kShort), "nothing");
  proxy.Stall(false);
  EXPECT_EQ(Read(server), "stalled") << "without loss";
  proxy.Delay(absl::Milliseconds(300));
  const absl::Time begin = MonotonicNow();
  Say(client, "late");
  EXPECT_EQ(Read(server), "late");
  EXPECT_GE(MonotonicNow() - begin, absl::Milliseconds(290));
  proxy.Delay(absl::ZeroDuration());
  proxy.HalfClose();
  EXPECT_EQ(Read(server), "closed");
  Say(server, "still here");
  EXPECT_EQ(Read(client), "still here");
  const auto [other_client, other_server] = ends();
  Say(other_client, "ping");
  EXPECT_EQ(Read(other_server), "ping");
  proxy.Cut();
  EXPECT_EQ(Read(other_client), "reset");
  EXPECT_EQ(Read(other_server), "reset");
  for (const int fd : {client, server, other_client, other_server, listener}) close(fd);
}

// --- the audit of streams ---

// The responses of an Inference service to one request, correct except for the changes that a test makes.
struct Answer {
  const v1::GenerateRequest& request;
  grpc::ServerWriter<v1::GenerateResponse>& writer;
  const Workload& workload;
  uint64_t number;

  void Write(uint32_t first, uint32_t token) const {
    v1::GenerateResponse response;
    response.set_first_index(first);
    response.add_token_ids(token);
    writer.Write(response);
  }
  void WriteTokens(uint32_t begin, uint32_t end) const {
    for (uint32_t i = begin; i < end; ++i) Write(i, workload.Token(number, i));
  }
  // The tokens of [begin, end), and a finish that counts all.
  grpc::Status Finish(uint32_t begin, uint32_t end) const {
    WriteTokens(begin, end);
    v1::GenerateResponse response;
    response.mutable_finish()->set_reason(v1::FINISH_REASON_LENGTH);
    response.mutable_finish()->mutable_usage()->set_completion_tokens(length());
    writer.Write(response);
    return grpc::Status::OK;
  }
  uint32_t length() const { return request.max_new_tokens(); }
};
using Twist = std::function<grpc::Status(const Answer&)>;

class TwistedService final : public v1::Inference::Service {
 public:
  TwistedService(const Workload& workload, Twist twist) : workload_(workload), twist_(std::move(twist)) {}

  grpc::Status Generate(grpc::ServerContext*, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    const std::vector<std::string> parts = absl::StrSplit(request->request_id(), '-');
    return twist_({*request, *writer, workload_, std::stoull(parts.back())});
  }

 private:
  const Workload& workload_;
  const Twist twist_;
};

// The ledger after a second of requests to this service.
Ledger LedgerOf(const Twist& twist, int poisoned = 0) {
  const Workload workload(1, 4);
  TwistedService service(workload, twist);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  LoadOptions options = {.address = absl::StrCat("127.0.0.1:", port), .rate = 20};
  options.cancelled = options.dropped = 0;
  options.deadline = absl::Seconds(5 * testing::kSlowdown);
  ClientLoad load(options, workload);
  load.SendPoisoned(poisoned);
  load.Run(absl::Seconds(1));
  server->Shutdown();
  return load.ledger();
}

std::string Violations(const Ledger& ledger) {
  const MemoryWatch memory;
  std::string all;
  for (const std::string& violation : Audit({ledger, memory, {}, {}, absl::Seconds(60), {}}).violations)
    absl::StrAppend(&all, violation, "\n");
  return all;
}

TEST(Audit, FindsStreamsThatAreWrong) {
  const std::vector<std::pair<const char*, Twist>> twists = {
      {"tokens repeated: ",
       [](const Answer& answer) {
         answer.WriteTokens(0, answer.length());
         return answer.Finish(answer.length() - 1, answer.length());
       }},
      {"tokens left out: ", [](const Answer& answer) { return answer.Finish(1, answer.length()); }},
      {"tokens of another value than undisturbed: ",
       [](const Answer& answer) {
         answer.Write(0, answer.workload.Token(answer.number, 0) + 1);
         return answer.Finish(1, answer.length());
       }},
      {"finishes that contradict their streams: ",
       [](const Answer& answer) { return answer.Finish(0, answer.length() - 1); }},
      {"requests lost: ",
       [](const Answer& answer) {
         if (answer.request.has_resume_from_index()) return grpc::Status(grpc::StatusCode::NOT_FOUND, "who?");
         answer.WriteTokens(0, 1);
         return grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone");
       }},
      {"requests that hung to their deadline: ", [](const Answer&) {
         absl::SleepFor(testing::kSlowdown * absl::Seconds(6));
         return grpc::Status::OK;
       }}};
  for (const auto& [what, twist] : twists) EXPECT_THAT(Violations(LedgerOf(twist)), HasSubstr(what));
}

TEST(Audit, FollowsCorrectStreamsThatBreakAndGoOn) {
  const Ledger ledger = LedgerOf([](const Answer& answer) {
    const uint32_t from = answer.request.resume_from_index();
    answer.WriteTokens(from, from + 1);
    if (from + 1 < answer.length() && answer.request.resumable())
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone");
    return answer.Finish(from + 1, answer.length());
  });
  EXPECT_EQ(Violations(ledger), "");
  EXPECT_GT(ledger.fates.at(Fate::kCompleted), 0);
  EXPECT_GT(ledger.resumed, 0);
}

TEST(Audit, APoisonedRequestMustEndWithItsStatusAndWithoutATokens) {
  const std::string right = "the model's logits are not finite";
  for (const auto& [message, violation] : {std::pair(right, std::string()),
                                           {"workers died", "requests lost: 3"},
                                           {"", "tokens of poisoned requests: "}}) {
    SCOPED_TRACE(message);
    const Ledger ledger = LedgerOf(
        [&](const Answer& answer) {
          if (!answer.request.has_token_ids() || message.empty()) return answer.Finish(0, answer.length());
          return grpc::Status(grpc::StatusCode::INTERNAL, message);
        },
        3);
    EXPECT_THAT(Violations(ledger), HasSubstr(violation));
    if (message != right) continue;
    EXPECT_EQ(Violations(ledger), "");
    EXPECT_EQ(ledger.fates.at(Fate::kPoisoned), 3);
  }
}

}  // namespace
}  // namespace bfio::chaos
