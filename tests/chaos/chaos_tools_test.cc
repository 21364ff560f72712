// Tests of the tools of the chaos run: a schedule that repeats, an audit that detects violations, a proxy
// that follows its commands, attacks that reach their targets.
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
#include "tests/chaos/audit.h"
#include "tests/chaos/barrier_intruder.h"
#include "tests/chaos/client_load.h"
#include "tests/chaos/flood.h"
#include "tests/chaos/harmless_watch.h"
#include "tests/chaos/schedule.h"
#include "tests/chaos/tcp_proxy.h"
#include "tests/testing/log_pipe.h"
#include "tests/testing/process.h"
#include "worker/barrier/star/star_endpoint.h"

namespace bfio::chaos {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr absl::Duration kSoon = absl::Milliseconds(500), kEnd = absl::Seconds(20 * testing::kSlowdown);

std::string Text(const std::vector<Fault>& faults) {
  std::string text;
  for (const Fault& fault : faults) absl::StrAppend(&text, Describe(fault), "\n");
  return text;
}

ScheduleOptions Options(uint64_t seed) {
  return {seed, 8, absl::Seconds(5), absl::Minutes(100), absl::Seconds(5), absl::Seconds(1), AllFaults()};
}

TEST(Schedule, RepeatsForItsSeedAndForNoOther) {
  EXPECT_EQ(Text(DrawSchedule(Options(3))), Text(DrawSchedule(Options(3))));
  EXPECT_NE(Text(DrawSchedule(Options(3))), Text(DrawSchedule(Options(4))));
}

TEST(Schedule, HasEveryKindAtTheRequestedRate) {
  const std::vector<Fault> faults = DrawSchedule(Options(1));
  std::map<FaultKind, int> kinds;
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

TEST(Schedule, ClocksJumpBothWaysOnEveryMachine) {
  int routers = 0, back = 0;
  constexpr int kJumps = 900;
  for (int i = 0; i < kJumps; ++i) {
    const ClockJump jump = JumpOf({.detail = i});
    routers += jump.router;
    back += jump.by < absl::ZeroDuration();
    EXPECT_GE(absl::AbsDuration(jump.by), absl::Seconds(1));
    EXPECT_LE(absl::AbsDuration(jump.by), absl::Hours(24));
  }
  // A third and a half expected; six standard deviations.
  EXPECT_NEAR(routers, 300, 85);
  EXPECT_NEAR(back, 450, 90);
}

TEST(Hangs, ATimeWithoutDisturbanceIsMeasured) {
  const absl::Time t = absl::UnixEpoch();
  const auto gap = [&](double begin, double end) {
    return Gap{1, t + absl::Seconds(begin), t + absl::Seconds(end)};
  };
  const std::vector<Disturbance> faults = {{t + absl::Seconds(10), absl::Seconds(3)},
                                           {t + absl::Seconds(14), absl::Seconds(3)},
                                           {t + absl::Seconds(30), absl::Seconds(5)}};
  const absl::Duration patience = absl::Seconds(3);
  EXPECT_EQ(Hangs({gap(0, 2.9)}, faults, patience).size(), 0u);
  EXPECT_EQ(Hangs({gap(0, 3.1)}, faults, patience).size(), 1u) << "nothing explains it";
  EXPECT_EQ(Hangs({gap(8, 12.9)}, faults, patience).size(), 0u) << "2.9 s from the fault";
  EXPECT_EQ(Hangs({gap(8, 13.1)}, faults, patience).size(), 1u);
  EXPECT_EQ(Hangs({gap(9, 16.9)}, faults, patience).size(), 0u) << "a second fault in it";
  EXPECT_EQ(Hangs({gap(14.5, 17.6)}, faults, patience).size(), 1u) << "faults before it explain nothing";
  EXPECT_EQ(Hangs({gap(29, 34.9)}, faults, patience).size(), 0u) << "one that may take longer";
  EXPECT_EQ(Hangs({gap(29, 35.1)}, faults, patience).size(), 1u);
}

TEST(WronglyEnded, ASuspectsDeathsNeedAsManyFaults) {
  const absl::Time t = absl::UnixEpoch();
  const auto suspect = [&](double begin, double end) {
    return Suspect{1, t + absl::Seconds(begin), t + absl::Seconds(end)};
  };
  const std::vector<Disturbance> faults = {{t + absl::Seconds(10), absl::Seconds(3)},
                                           {t + absl::Seconds(12), absl::Seconds(3)},
                                           {t + absl::Seconds(14), absl::Seconds(3)}};
  const absl::Duration patience = absl::Seconds(3);
  EXPECT_EQ(WronglyEnded({suspect(9, 15)}, faults, patience).size(), 0u);
  EXPECT_EQ(WronglyEnded({suspect(12.9, 15)}, faults, patience).size(), 0u) << "one shows late";
  EXPECT_EQ(WronglyEnded({suspect(9, 13.9)}, faults, patience).size(), 1u) << "the third came after it";
  EXPECT_EQ(WronglyEnded({suspect(13.1, 20)}, faults, patience).size(), 1u);
}

// --- HarmlessWatch ---

class Watched : public ::testing::Test {
 protected:
  static constexpr FaultKind kHarmless = FaultKind::kFlood, kOther = FaultKind::kBlockedLog,
                             kHarmful = FaultKind::kCutLink;

  static absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }
  void Observe(double at, const GroupView& view) { watch_.Observe(view, At(at)); }
  void Begin(FaultKind kind, double at) { watch_.Begin(kind, At(at)); }
  void End(FaultKind kind, double at) { watch_.End(kind, At(at)); }

  const GroupView well_{7, 8, 100, 1000};
  HarmlessWatch watch_{{.workers = 8, .settle = absl::Seconds(3), .flood_kib = 500}};
};

TEST_F(Watched, AnUnchangedGroupIsNoViolation) {
  Begin(kHarmless, 10);
  for (int at = 10; at < 14; ++at) Observe(at, well_);
  End(kHarmless, 14);
  EXPECT_THAT(watch_.violations(), IsEmpty());
  EXPECT_THAT(watch_.watched(), ElementsAre(Pair(kHarmless, 1)));
}

TEST_F(Watched, AnotherEpochALostRankARouterThatEndsAndItsMemoryAreWrong) {
  const std::vector<std::pair<GroupView, std::string>> cases = {{{8, 8, 100, 1000}, "is epoch 8 of 8"},
                                                                {{7, 7, 100, 1000}, "is epoch 7 of 7"},
                                                                {{7, 8, 101, 1000}, "router has ended"},
                                                                {{7, 8, 100, 1501}, "grown by 501 KiB"}};
  for (const auto& [view, words] : cases) {
    HarmlessWatch watch({.workers = 8, .settle = absl::Seconds(3), .flood_kib = 500});
    watch.Begin(kHarmless, At(10));
    watch.Observe(well_, At(10));
    watch.Observe(view, At(11));
    EXPECT_THAT(watch.violations(), ElementsAre(AllOf(HasSubstr("under flood alone"), HasSubstr(words))));
  }
  Begin(kHarmless, 10);
  Observe(10, well_);
  watch_.Observe(std::nullopt, At(11));
  EXPECT_THAT(watch_.violations(), ElementsAre(HasSubstr("does not answer")));
}

TEST_F(Watched, AHarmfulFaultExplainsWhatComesUntilTheGroupHasSettled) {
  const GroupView other{8, 8, 100, 1000}, third{9, 8, 100, 1000};
  Begin(kHarmless, 10);
  Observe(10, well_);
  Begin(kHarmful, 11);
  End(kHarmful, 12);
  Observe(12, well_);
  Observe(14.9, other);
  EXPECT_THAT(watch_.violations(), IsEmpty());
  Observe(15, other);
  Observe(16, third);
  EXPECT_EQ(watch_.violations().size(), 1u);
  EXPECT_THAT(watch_.watched(), ElementsAre(Pair(kHarmless, 2)));
}

TEST_F(Watched, AGroupThatLacksRanksIsNotCompared) {
  Begin(kHarmless, 10);
  Observe(10, {7, 7, 100, 1000});
  Observe(11, well_);
  EXPECT_THAT(watch_.violations(), IsEmpty());
}

TEST_F(Watched, AnIntervalLastsAsLongAsAnyHarmlessFault) {
  Begin(kHarmless, 10);
  Observe(10, well_);
  Begin(kOther, 11);
  End(kHarmless, 12);
  Observe(13, {8, 8, 100, 1000});
  EXPECT_THAT(watch_.violations(), ElementsAre(HasSubstr("under blocked-log alone")));
  EXPECT_THAT(watch_.watched(), ElementsAre(Pair(kOther, 1), Pair(kHarmless, 1)));
  End(kOther, 14);
  Observe(20, well_);
  Observe(21, {9, 8, 100, 1000});
  EXPECT_EQ(watch_.violations().size(), 1u) << "nothing is under way";
}

// --- attacks ---

TEST(LogPipe, KeepsAWriterWaitingWhileItIsBlocked) {
  testing::LogPipe pipe;
  testing::Process free("/bin/sh", {"-c", "echo one >&2; echo two >&2"}, pipe.wrapper());
  EXPECT_EQ(free.Wait(kEnd), 0);
  EXPECT_EQ(pipe.Read(), "one\ntwo\n");
  pipe.Block();
  testing::Process blocked("/bin/sh", {"-c", "echo three >&2"}, pipe.wrapper());
  EXPECT_EQ(blocked.Wait(kSoon), std::nullopt);
  EXPECT_EQ(pipe.Read(), "one\ntwo\n");
  pipe.Unblock();
  const absl::Time give_up = MonotonicNow() + kEnd;
  while (!blocked.Wait(absl::ZeroDuration()) && MonotonicNow() < give_up) pipe.Read();
  EXPECT_EQ(pipe.Read(), "one\ntwo\nthree\n");
}

TEST(BarrierIntruder, ReachesABarrierAndDoesNotJoinIt) {
  auto hub = worker::StarEndpoint::Create({});
  ASSERT_TRUE(hub.ok());
  const absl::StatusOr<std::string> offer = (*hub)->Offer();
  ASSERT_TRUE(offer.ok());
  const std::string address = offer->substr(0, offer->find('/'));
  BarrierIntruder intruder({.barriers = {address}, .world_size = 2, .epoch = 5});
  EXPECT_FALSE((*hub)->Form({5, 0, 2, *offer}, kSoon, {}).ok());
  EXPECT_EQ(intruder.joined(), 0);
  EXPECT_GT(intruder.connections(), 0);
}

TEST(BarrierIntruder, CountsABarrierThatItJoined) {
  auto hub = worker::StarEndpoint::Create({});
  ASSERT_TRUE(hub.ok());
  // The hub forms with the secret that the intruder tries, so that the intruder joins.
  const absl::StatusOr<std::string> offer = (*hub)->Offer();
  ASSERT_TRUE(offer.ok());
  const std::string address = offer->substr(0, offer->find('/'));
  BarrierIntruder intruder({.barriers = {address}, .world_size = 2, .epoch = 5});
  EXPECT_TRUE((*hub)->Form({5, 0, 2, absl::StrCat(address, "/", std::string(64, '0'))}, kEnd, {}).ok());
  testing::Eventually([&] { return intruder.joined() > 0; });
  EXPECT_EQ(intruder.joined(), 1);
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

// --- the audit ---

// An Inference service with correct responses, except for the changes that `twist` makes.
class TwistedService final : public v1::Inference::Service {
 public:
  using Writer = grpc::ServerWriter<v1::GenerateResponse>;
  using Twist = std::function<grpc::Status(const v1::GenerateRequest&, Writer&, const Workload&, uint64_t)>;
  TwistedService(const Workload& workload, Twist twist) : workload_(workload), twist_(std::move(twist)) {}

  grpc::Status Generate(grpc::ServerContext*, const v1::GenerateRequest* request, Writer* writer) override {
    const std::vector<std::string> parts = absl::StrSplit(request->request_id(), '-');
    return twist_(*request, *writer, workload_, std::stoull(parts.back()));
  }

 private:
  const Workload& workload_;
  const Twist twist_;
};

void Write(TwistedService::Writer& writer, uint32_t first, std::vector<uint32_t> tokens) {
  v1::GenerateResponse response;
  response.set_first_index(first);
  response.mutable_token_ids()->Add(tokens.begin(), tokens.end());
  writer.Write(response);
}

void WriteTokens(TwistedService::Writer& writer, const Workload& workload, uint64_t n, uint32_t begin,
                 uint32_t end) {
  for (uint32_t i = begin; i < end; ++i) Write(writer, i, {workload.Token(n, i)});
}

void WriteFinish(TwistedService::Writer& writer, uint32_t tokens) {
  v1::GenerateResponse response;
  response.mutable_finish()->set_reason(v1::FINISH_REASON_LENGTH);
  response.mutable_finish()->mutable_usage()->set_completion_tokens(tokens);
  writer.Write(response);
}

// The ledger after a second of requests to this service.
Ledger LedgerOf(const TwistedService::Twist& twist, int poisoned = 0) {
  const auto workload = MakeSimWorkload(1, 4);
  TwistedService service(*workload, twist);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  LoadOptions options = {.address = absl::StrCat("127.0.0.1:", port), .rate = 20};
  options.cancelled = options.dropped = 0;
  options.deadline = absl::Seconds(5 * testing::kSlowdown);
  ClientLoad load(options, *workload);
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

// The tokens of [begin, end), and a finish that counts all.
grpc::Status WriteAll(const v1::GenerateRequest& request, TwistedService::Writer& writer,
                      const Workload& workload, uint64_t n, uint32_t begin, uint32_t end) {
  WriteTokens(writer, workload, n, begin, end);
  WriteFinish(writer, request.max_new_tokens());
  return grpc::Status::OK;
}

TEST(Audit, FindsNoViolationInACorrectRun) {
  const Ledger ledger = LedgerOf([](const auto& request, auto& writer, const auto& workload, uint64_t n) {
    return WriteAll(request, writer, workload, n, 0, request.max_new_tokens());
  });
  EXPECT_EQ(Violations(ledger), "");
  EXPECT_GT(ledger.fates.at(Fate::kCompleted), 0);
}

TEST(Audit, FindsStreamsThatAreWrong) {
  const std::vector<std::pair<const char*, TwistedService::Twist>> twists = {
      {"tokens repeated: ",
       [](const auto& request, auto& writer, const auto& workload, uint64_t n) {
         WriteTokens(writer, workload, n, 0, request.max_new_tokens());
         return WriteAll(request, writer, workload, n, request.max_new_tokens() - 1,
                         request.max_new_tokens());
       }},
      {"tokens left out: ",
       [](const auto& request, auto& writer, const auto& workload, uint64_t n) {
         return WriteAll(request, writer, workload, n, 1, request.max_new_tokens());
       }},
      {"tokens of another value than undisturbed: ",
       [](const auto& request, auto& writer, const auto& workload, uint64_t n) {
         Write(writer, 0, {workload.Token(n, 0) + 1});
         return WriteAll(request, writer, workload, n, 1, request.max_new_tokens());
       }},
      {"finishes that contradict their streams: ",
       [](const auto& request, auto& writer, const auto& workload, uint64_t n) {
         return WriteAll(request, writer, workload, n, 0, request.max_new_tokens() - 1);
       }},
      {"requests lost: ", [](const auto& request, auto& writer, const auto& workload, uint64_t n) {
         if (request.has_resume_from_index()) return grpc::Status(grpc::StatusCode::NOT_FOUND, "who?");
         WriteTokens(writer, workload, n, 0, 1);
         return grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone");
       }}};
  for (const auto& [what, twist] : twists) EXPECT_THAT(Violations(LedgerOf(twist)), HasSubstr(what));
}

// The ledger of a service that ends some requests as poisoned requests must end.
Ledger LedgerOfPoison(const TwistedService::Twist& twist) {
  return LedgerOf(
      [&](const v1::GenerateRequest& request, auto& writer, const auto& workload, uint64_t n) {
        if (request.has_token_ids()) return twist(request, writer, workload, n);
        return WriteAll(request, writer, workload, n, 0, request.max_new_tokens());
      },
      3);
}

TEST(Audit, CountsPoisonedRequestsThatEndWithTheirStatus) {
  const Ledger ledger = LedgerOfPoison([](const auto&, auto&, const auto&, uint64_t) {
    return grpc::Status(grpc::StatusCode::INTERNAL, "the model's logits are not finite");
  });
  EXPECT_EQ(Violations(ledger), "");
  EXPECT_EQ(ledger.fates.at(Fate::kPoisoned), 3);
}

TEST(Audit, FindsAPoisonedRequestThatEndsOtherwise) {
  const Ledger ledger = LedgerOfPoison([](const auto&, auto&, const auto&, uint64_t) {
    return grpc::Status(grpc::StatusCode::INTERNAL, "workers died");
  });
  EXPECT_THAT(Violations(ledger), HasSubstr("requests lost: 3"));
}

TEST(Audit, FindsAPoisonedRequestThatIsAnswered) {
  const Ledger ledger =
      LedgerOfPoison([](const auto& request, auto& writer, const auto& workload, uint64_t n) {
        return WriteAll(request, writer, workload, n, 0, request.max_new_tokens());
      });
  EXPECT_THAT(Violations(ledger), HasSubstr("tokens of poisoned requests: "));
}

TEST(Audit, FollowsAStreamThatBreaksAndGoesOn) {
  const Ledger ledger = LedgerOf([](const auto& request, auto& writer, const auto& workload, uint64_t n) {
    const uint32_t from = request.resume_from_index();
    WriteTokens(writer, workload, n, from, from + 1);
    if (from + 1 < request.max_new_tokens() && request.resumable())
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone");
    return WriteAll(request, writer, workload, n, from + 1, request.max_new_tokens());
  });
  EXPECT_EQ(Violations(ledger), "");
  EXPECT_GT(ledger.resumed, 0);
}

TEST(Audit, FindsARequestWithoutAnEnd) {
  const Ledger ledger = LedgerOf([](const auto&, auto&, const auto&, uint64_t) {
    absl::SleepFor(testing::kSlowdown * absl::Seconds(6));
    return grpc::Status::OK;
  });
  EXPECT_THAT(Violations(ledger), HasSubstr("requests that hung to their deadline: "));
}

// A pair of TCP sockets connected through a proxy.
class Proxied : public ::testing::Test {
 protected:
  Proxied() {
    sockaddr_in address{};
    const int listener = ListenOnLoopback(address);
    proxy_ = std::make_unique<TcpProxy>("127.0.0.1", "127.0.0.1", ntohs(address.sin_port));
    const std::vector<std::string> parts = absl::StrSplit(proxy_->address(), ':');
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(parts[1])));
    client_ = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(connect(client_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    server_ = accept(listener, nullptr, nullptr);
    close(listener);
  }
  ~Proxied() override {
    close(client_);
    close(server_);
  }
  // What can be read within `patience`: text, "closed", "reset" or "nothing".
  static std::string Read(int fd, absl::Duration patience) {
    pollfd set{fd, POLLIN, 0};
    if (poll(&set, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) == 0) return "nothing";
    char buffer[64];
    const ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got < 0) return "reset";
    return got == 0 ? "closed" : std::string(buffer, static_cast<size_t>(got));
  }
  static void Say(int fd, const std::string& text) {
    ASSERT_EQ(send(fd, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }

  static constexpr absl::Duration kLong = absl::Seconds(20), kShort = absl::Milliseconds(100);
  std::unique_ptr<TcpProxy> proxy_;
  int client_ = -1, server_ = -1;
};

TEST_F(Proxied, PassesBothWays) {
  Say(client_, "ping");
  EXPECT_EQ(Read(server_, kLong), "ping");
  Say(server_, "pong");
  EXPECT_EQ(Read(client_, kLong), "pong");
}

TEST_F(Proxied, CutsByAReset) {
  proxy_->Cut();
  EXPECT_EQ(Read(client_, kLong), "reset");
  EXPECT_EQ(Read(server_, kLong), "reset");
}

TEST_F(Proxied, StallsAndGoesOnWithoutLoss) {
  proxy_->Stall(true);
  absl::SleepFor(kShort);
  Say(client_, "ping");
  EXPECT_EQ(Read(server_, kShort), "nothing");
  proxy_->Stall(false);
  EXPECT_EQ(Read(server_, kLong), "ping");
}

TEST_F(Proxied, ClosesOneHalf) {
  proxy_->HalfClose();
  EXPECT_EQ(Read(server_, kLong), "closed");
  Say(server_, "still here");
  EXPECT_EQ(Read(client_, kLong), "still here");
}

TEST_F(Proxied, Delays) {
  proxy_->Delay(absl::Milliseconds(300));
  const absl::Time begin = MonotonicNow();
  Say(client_, "ping");
  EXPECT_EQ(Read(server_, kLong), "ping");
  EXPECT_GE(MonotonicNow() - begin, absl::Milliseconds(290));
}

}  // namespace
}  // namespace bfio::chaos
