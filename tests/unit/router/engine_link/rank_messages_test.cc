// What ranks publish: what KV events say of losses and step metrics of steps, and how they come.
#include "router/engine_link/published/rank_messages.h"

#include <endian.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "router/engine_link/engine_barrier.h"
#include "router/engine_link/protocol/stream_counts.h"
#include "router/engine_link/published/engine_events.h"
#include "router/engine_link/published/kv_events.h"
#include "router/engine_link/published/step_metrics.h"
#include "tests/testing/kv_publisher.h"
#include "tests/testing/sockets.h"

namespace bfio::router {
namespace {

using Json = nlohmann::json;
using Tokens = std::vector<uint32_t>;

std::string Packed(const Json& json) {
  return testing::KvPublisher::Packed(json);
}
Json Removed(int blocks, const Json& medium = "GPU") {
  return Json::array({"BlockRemoved", std::vector<int>(static_cast<size_t>(blocks), 7), medium});
}
// Another one, which tells no loss, comes first.
Json Batch(const Json& event) {
  const Json stored = {"BlockStored", {7, 8}, nullptr, {1, 2, 3}, 16, nullptr, "GPU"};
  return {1.5, {stored, event}, 3};
}

TEST(ReadKvEvents, BlocksThatAreRemovedAndAllThatAreCleared) {
  const struct {
    Json batch;
    int64_t blocks;
    bool all = false;
  } kCases[] = {
      {Batch(Removed(3)), 3},
      {Batch(Removed(3, nullptr)), 3},
      {Batch(Removed(3, "CPU")), 0},
      {Batch({"BlockRemoved", {Json::binary({1, 2}), Json::binary({3})}}), 2},
      {Batch({"BlockRemoved", {1, 2}, "GPU", 1}), 0},
      {Batch({"AllBlocksCleared"}), 0, true},
      {Batch({"Another", {1, 2}, {{{"a", 1}}}}), 0},
      {{1.5, Json::array()}, 0},
      {{{"ts", 1.5}, {"events", {{{"type", "BlockRemoved"}, {"block_hashes", {1, 2}}, {"medium", "GPU"}}}}},
       2},
      {{{"events", {{{"type", "AllBlocksCleared"}}}}, {"ts", 1.5}}, 0, true},
      {{{"others", {{{"type", "AllBlocksCleared"}}}}}, 0},
  };
  for (const auto& [batch, blocks, all] : kCases) {
    const auto events = ReadKvEvents(Packed(batch));
    ASSERT_TRUE(events.ok()) << batch;
    int64_t removed = 0, cleared = 0;
    for (const KvEvent& event : *events) {
      if (event.kind == KvEvent::Kind::kRemoved) removed += std::ssize(event.blocks);
      cleared += event.kind == KvEvent::Kind::kCleared;
    }
    EXPECT_EQ(removed, blocks) << batch;
    EXPECT_EQ(cleared, all) << batch;
  }
  const std::string good = Packed(Batch(Removed(3)));
  for (const std::string& bad :
       {std::string(), good.substr(0, good.size() - 1), good + "x", Packed("text"),
        std::string(size_t{1} << 20, '\x91'), std::string("\xdd\xff\xff\xff\xff", 5), std::string("\xc1")})
    EXPECT_FALSE(ReadKvEvents(bad).ok()) << bad.substr(0, 9);
}

// As dynamo.common.forward_pass_metrics of ai-dynamo 1.6 encodes it.
Json Metrics() {
  return {{"version", 1},
          {"worker_id", "w"},
          {"dp_rank", 0},
          {"counter_id", 7},
          {"wall_time", 0.25},
          {"scheduled_requests",
           {{"num_prefill_requests", 2},
            {"sum_prefill_tokens", 300},
            {"var_prefill_length", 1.5},
            {"sum_prefill_kv_tokens", 40},
            {"num_decode_requests", 5},
            {"sum_decode_kv_tokens", 6000},
            {"var_decode_kv_tokens", 2.5}}},
          {"queued_requests", {{"num_prefill_requests", 99}, {"sum_decode_kv_tokens", 99}}}};
}

TEST(ReadStepMetrics, AStepAndWhatIsNone) {
  const auto step = ReadStepMetrics(7, Packed(Metrics()));
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(step->step, 7);
  EXPECT_EQ(step->took, absl::Milliseconds(250));
  EXPECT_EQ(step->decodes, 5);
  EXPECT_EQ(step->prefills, 2);
  EXPECT_EQ(step->batch().tokens, 305);
  EXPECT_EQ(step->batch().decode_context, 6000);
  EXPECT_EQ(step->batch().prefill_pairs, 150 * (40 + 150)) << "two chunks of 150";
  const auto idle = ReadStepMetrics(8, Packed({{"version", 1}, {"wall_time", 0}}));
  ASSERT_TRUE(idle.ok());
  EXPECT_EQ(idle->took, absl::ZeroDuration());
  const auto refused = [](uint64_t number, const std::string& path, const Json& value) {
    Json metrics = Metrics();
    metrics[Json::json_pointer(path)] = value;
    const absl::Status status = ReadStepMetrics(number, Packed(metrics)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << path;
    return std::string(status.message());
  };
  EXPECT_EQ(refused(7, "/version", 2), "its version is 2, not 1");
  EXPECT_EQ(refused(7, "/wall_time", -1), "its time is out of range");
  EXPECT_EQ(refused(7, "/wall_time", std::nan("")), "its time is out of range");
  for (const char* name : {"num_prefill_requests", "sum_prefill_tokens", "sum_prefill_kv_tokens",
                           "num_decode_requests", "sum_decode_kv_tokens"}) {
    EXPECT_EQ(refused(7, absl::StrCat("/scheduled_requests/", name), -1), "a count is out of range");
    EXPECT_EQ(refused(7, absl::StrCat("/scheduled_requests/", name), 1e18), "a count is out of range");
  }
  EXPECT_EQ(refused(7, "/scheduled_requests/num_decode_requests", 70'000), "a count is out of range");
  EXPECT_EQ(refused(~uint64_t{0}, "/dp_rank", 0), "its number is out of range");
  EXPECT_FALSE(ReadStepMetrics(7, "").ok());
  EXPECT_FALSE(ReadStepMetrics(7, Packed(Json::array({1, 2}))).ok());
}

TEST(EngineEvents, StepsThatNobodyTakesAreBounded) {
  testing::KvPublisher engine;
  std::atomic<size_t> told = 0;
  const auto events = EngineEvents::Of(
      {.protocol = "http", .server = {"127.0.0.1", 1}, .step_metrics = engine.port()}, [&] { ++told; });
  events->Begin(0, 1);
  size_t takes = 0, all = 0, most = 0;
  for (uint64_t number = 0; all < 3 * EngineEvents::kMostSteps; absl::SleepFor(absl::Milliseconds(5))) {
    for (size_t i = 0; i < 2 * EngineEvents::kMostSteps; ++i)
      engine.Send(number++, Packed({{"version", 1}, {"wall_time", 0.01}}));
    if (told == takes) continue;
    absl::SleepFor(absl::Milliseconds(5));
    EXPECT_EQ(told, ++takes) << "once until they are taken";
    for (const auto& [rank, of] : events->TakeSteps()) {
      EXPECT_EQ(rank, 0);
      most = std::max(most, of.size());
      all += of.size();
    }
  }
  EXPECT_LE(most, EngineEvents::kMostSteps);
}

int64_t LostSince(KvEvents& events, int32_t rank) {
  EngineLoad load;
  events.TakeChanges(rank, load);
  return load.cache_lost_ppm;
}

// What is lost after a message, which changes something.
int64_t Lost(KvEvents& events, int32_t rank) {
  for (;; absl::SleepFor(absl::Milliseconds(1)))
    if (const int64_t lost = LostSince(events, rank); lost > 0) return lost;
}

TEST(KvEvents, AShareIsLostByBlocksAndAllByGapsRestartsAndWhatCannotBeRead) {
  constexpr int32_t kRank = 2;
  testing::KvPublisher engine;
  KvEvents events;
  RankMessages messages(
      "http://a:1", "127.0.0.1",
      {{"KV events", engine.port() - kRank, 0,
        [&](int32_t rank, uint64_t number, auto message) { return events.Take(rank, number, message); }}});
  EXPECT_EQ(LostSince(events, kRank), 0) << "not followed yet";
  events.Begin(kRank, 1000);
  messages.Follow(kRank);
  uint64_t number = 40;
  // Until it is subscribed.
  for (int64_t lost = 0; lost == 0; absl::SleepFor(absl::Milliseconds(1))) {
    engine.Send(number++, Packed(Batch(Removed(1))));
    lost = LostSince(events, kRank);
    EXPECT_LT(lost, 1'000'000) << "its first number may be any";
  }
  engine.Send(number++, Packed(Batch({"AllBlocksCleared"})));
  while (Lost(events, kRank) < 1'000'000) continue;
  engine.Send(number++, Packed(Batch(Removed(250))));
  EXPECT_EQ(Lost(events, kRank), 250'000);
  engine.Send(number++, Packed(Batch({"AllBlocksCleared"})));
  EXPECT_EQ(Lost(events, kRank), 1'000'000);
  engine.Send(number + 1, Packed(Batch(Removed(1))));
  EXPECT_EQ(Lost(events, kRank), 1'000'000) << "one is missing";
  engine.Send(0, Packed(Batch(Removed(1))));
  EXPECT_EQ(Lost(events, kRank), 1'000'000) << "it has been restarted";
  engine.Send(1, "\xc1");
  EXPECT_EQ(Lost(events, kRank), 1'000'000);
  engine.Send(2, Packed(Batch(Removed(10))));
  EXPECT_EQ(Lost(events, kRank), 10'000);
  engine.Send({"one part"});
  EXPECT_EQ(Lost(events, kRank), 1'000'000);
  EXPECT_EQ(LostSince(events, kRank + 1), 0);
}

class ExactKvEventsTest : public ::testing::Test {
 protected:
  ExactKvEventsTest() { events_.Begin(0, 1000); }

  void Take(const std::vector<Json>& events) {
    EXPECT_TRUE(events_.Take(0, number_++, Packed(Json::array({1.5, events, 0}))).ok());
  }
  static Json Gone(const Json& names) { return Json::array({"BlockRemoved", names, "GPU"}); }
  // The block i is named 100 + i.
  static Json Stored(const Json& parent, int blocks, int each, int first = 0) {
    Json names = Json::array(), tokens = Json::array();
    for (int i = 0; i < blocks; ++i) names.push_back(100 + first + i);
    for (int i = first * each; i < (first + blocks) * each; ++i) tokens.push_back(TokenAt(i));
    return {"BlockStored", names, parent, tokens, each, nullptr, "GPU"};
  }
  static uint32_t TokenAt(int i) { return static_cast<uint32_t>(7 + 31 * i); }
  // The router's names of the prompt's blocks.
  static std::vector<uint64_t> Names(int tokens) {
    Tokens prompt;
    for (int i = 0; i < tokens; ++i) prompt.push_back(TokenAt(i));
    return *core::NamePrefixBlocks(prompt);
  }
  EngineLoad Changes() {
    EngineLoad load;
    events_.TakeChanges(0, load);
    return load;
  }
  static std::vector<core::PrefixChange> Of(const std::vector<uint64_t>& names, bool stored) {
    std::vector<core::PrefixChange> changes;
    for (const uint64_t name : names) changes.push_back({name, stored});
    std::sort(changes.begin(), changes.end(), [](const auto& a, const auto& b) { return a.block < b.block; });
    return changes;
  }

  KvEvents events_{/*exact=*/true};
  uint64_t number_ = 3;
};

TEST_F(ExactKvEventsTest, BlocksHaveTheNamesOfTheirPrompts) {
  for (const int each : {1, 16, 48, 64, 96, 256}) {
    const int blocks = 768 / each;
    Take({Stored(nullptr, blocks / 2, each), Stored(99 + blocks / 2, blocks - blocks / 2, each, blocks / 2)});
    EXPECT_EQ(Changes().cache_changes, Of(Names(768), true)) << each;
    // The last block of all: the router's blocks that end in it are gone.
    Take({Gone(Json::array({99 + blocks}))});
    const std::vector<uint64_t> names = Names(768), rest = Names(std::max(64, (768 - each) / 64 * 64));
    EXPECT_EQ(Changes().cache_changes, Of({names.begin() + std::ssize(rest), names.end()}, false)) << each;
    Take({Json::array({"AllBlocksCleared"})});
    EXPECT_EQ(Changes().cache_lost_ppm, 1'000'000);
  }
}

TEST_F(ExactKvEventsTest, WhatTheRouterCannotNameIsLeftOut) {
  Json adapter = Stored(nullptr, 4, 16), salted = adapter, short_of = adapter, endless = adapter,
       in_host = adapter;
  adapter[5] = 1;
  salted.insert(salted.end(), {nullptr, Json::array({Json::array({"salt"}), nullptr, nullptr, nullptr})});
  short_of[3].erase(0);
  endless[4] = int64_t{1} << 62;
  in_host[6] = "CPU";
  Take({adapter, salted, short_of, endless, in_host, Stored(55, 4, 16)});
  Take({Gone({100, 101})});
  EXPECT_EQ(Changes(), EngineLoad());
  Json named = {{"type", "BlockStored"},
                {"block_hashes", {Json::binary({1}), Json::binary({2})}},
                {"parent_block_hash", nullptr},
                {"token_ids", Stored(nullptr, 2, 32)[3]},
                {"block_size", 32},
                {"medium", "GPU"},
                {"extra_keys", {nullptr, nullptr}}};
  Take({named});
  EXPECT_EQ(Changes().cache_changes, Of(Names(64), true));
  Take({Gone(Json::array({Json::binary({2})}))});
  EXPECT_EQ(Changes().cache_changes, Of(Names(64), false));
}

TEST_F(ExactKvEventsTest, ALossForgetsAllAndIsFollowedByWhatComesAfterIt) {
  Take({Stored(nullptr, 8, 16)});
  ++number_;
  Take({Stored(107, 4, 16, 8)});
  EngineLoad load = Changes();
  EXPECT_EQ(load.cache_lost_ppm, 1'000'000);
  EXPECT_TRUE(load.cache_changes.empty()) << "its beginning is not known any more";
  Take({Stored(nullptr, 4, 16)});
  EXPECT_EQ(Changes().cache_changes, Of(Names(64), true));
  // More than one answer has.
  const int blocks = static_cast<int>(KvEvents::kMostChanges) + 10;
  Json many = Stored(nullptr, blocks, 64);
  Take({many});
  EXPECT_EQ(Changes().cache_changes.size(), KvEvents::kMostChanges);
  EXPECT_EQ(Changes().cache_changes.size(), 10u);
  many[2] = 99 + blocks;
  const std::string message = Packed(Json::array({1.5, Json::array({many}), 0}));
  for (size_t i = 0; i <= KvEvents::kMostWaiting / static_cast<size_t>(blocks); ++i)
    EXPECT_TRUE(events_.Take(0, number_++, message).ok());
  load = Changes();
  EXPECT_EQ(load.cache_lost_ppm, 1'000'000) << "nobody has asked for long";
  EXPECT_LT(load.cache_changes.size(), KvEvents::kMostChanges);
}

TEST_F(ExactKvEventsTest, ARankWithMoreBlocksThanItsPartCountsItsLosses) {
  for (int32_t rank = 1; rank < 256; ++rank) events_.Begin(rank, 1);
  const int part = static_cast<int>(KvEvents::kMostBlocks / 256);
  Take({Stored(nullptr, part, 1)});
  EXPECT_EQ(Changes().cache_changes, Of(Names(part), true));
  Take({Stored(99 + part, 1, 1, part)});
  EXPECT_EQ(Changes(), (EngineLoad{.cache_lost_ppm = 1'000'000}));
  Take({Gone(std::vector<int>(100, 1))});
  EXPECT_EQ(Changes(), (EngineLoad{.cache_lost_ppm = 100'000}));
}

TEST_F(ExactKvEventsTest, WhoIsNewIsToldAllThatIsHeldAndOnlyWhatHasChangedAfterAll) {
  Take({Stored(nullptr, 16, 16)});
  EXPECT_EQ(Changes().cache_changes, Of(Names(256), true));
  Take({Gone({112}), Gone({111})});
  events_.Begin(0, 1000);
  const std::vector<uint64_t> names = Names(256);
  EXPECT_EQ(Changes().cache_changes, Of({names[0], names[1], names[3]}, true)) << "what ends in 115 is held";
  Take({Stored(110, 1, 16, 11), Gone({103}), Stored(102, 1, 16, 3)});
  EXPECT_EQ(Changes().cache_changes, Of({names[0], names[2]}, true));
}

// --- messages that are sent again ---

class ReplayTest : public ExactKvEventsTest {
 protected:
  ReplayTest()
      : messages_("http://a:1", "127.0.0.1",
                  {{"KV events", engine_.port(), engine_.replay_port(),
                    [this](int32_t rank, uint64_t number, auto message) {
                      return events_.Take(rank, number, message);
                    }}}) {}

  // The prompt's i-th block of 64 tokens.
  static std::string Block(int i) {
    return Packed(Json::array({1.5, Json::array({Stored(i == 0 ? Json() : Json(99 + i), 1, 64, i)}), 0}));
  }
  // All changes, until the block i has come.
  std::vector<core::PrefixChange> Until(int i) {
    std::vector<core::PrefixChange> all;
    const core::PrefixChange last{Names(64 * (i + 1)).back(), true};
    do {
      const EngineLoad load = Changes();
      lost_ += load.cache_lost_ppm;
      all.insert(all.end(), load.cache_changes.begin(), load.cache_changes.end());
      absl::SleepFor(absl::Milliseconds(1));
    } while (std::find(all.begin(), all.end(), last) == all.end());
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.block < b.block; });
    return all;
  }

  testing::KvPublisher engine_;
  int64_t lost_ = 0;
  RankMessages messages_;
};

TEST_F(ReplayTest, NothingIsMissingOfWhatCameEarlierOrWasLostOnTheWay) {
  int next = 0;
  for (; next < 100; ++next) engine_.Send(static_cast<uint64_t>(next), Block(next));
  messages_.Follow(0);
  EXPECT_EQ(Until(99), Of(Names(64 * 100), true)) << "from before it listened";
  for (; next < 200; ++next) {
    const auto number = static_cast<uint64_t>(next);
    next % 7 == 3 && next < 190 ? engine_.Keep(number, Block(next)) : engine_.Send(number, Block(next));
  }
  const std::vector<uint64_t> names = Names(64 * 200);
  EXPECT_EQ(Until(199), Of({names.begin() + 100, names.end()}, true));
  EXPECT_EQ(lost_, 0);
  EXPECT_GE(engine_.replays(), 2u);
}

TEST_F(ReplayTest, AnEngineThatStartsAgainHasLostAllAndIsFollowedFromItsBeginning) {
  for (int i = 0; i < 9; ++i) engine_.Send(static_cast<uint64_t>(i), Block(i));
  messages_.Follow(0);
  Until(8);
  engine_.Send(9, Block(9));
  Until(9);
  engine_.Restart();
  for (int i = 0; i < 3; ++i) engine_.Keep(static_cast<uint64_t>(i), Block(i));
  engine_.Send(3, Block(3));
  EXPECT_EQ(Until(3), Of(Names(256), true));
  EXPECT_EQ(lost_, 1'000'000);
}

TEST_F(ReplayTest, WhatTheEngineHasNoLongerIsLost) {
  for (int i = 0; i < 5; ++i) engine_.Send(static_cast<uint64_t>(i), Block(i));
  messages_.Follow(0);
  Until(4);
  engine_.Send(100, Block(0));
  EXPECT_EQ(Until(0), Of(Names(64), true));
  EXPECT_EQ(lost_, 1'000'000);
  engine_.Send(101, Block(1));
  Until(1);
  EXPECT_EQ(lost_, 1'000'000);
}

// A publisher of which a test says each byte.
class RawPublisher {
 public:
  RawPublisher() { listen(listener_, 8); }
  ~RawPublisher() {
    close(listener_);
    if (fd_ >= 0) close(fd_);
  }
  int port() const { return testing::PortOf(listener_); }
  // The next subscriber: it is greeted, in ZMTP 3.0 or another version.
  void Accept(char version = 3) {
    Greet("SUB", version);
    Send(Frame('\4', std::string("\5READY\xbSocket-Type\0\0\0\3PUB", 25)));
    for (char byte = 0; byte != 1 && recv(fd_, &byte, 1, 0) == 1;) continue;
  }
  // The next one that asks for messages again, up to its question.
  void AcceptDealer() {
    Greet("DEALER", 3);
    Send(Frame('\4', std::string("\5READY\xbSocket-Type\0\0\0\6ROUTER", 28)));
    char question[12];
    EXPECT_EQ(recv(fd_, question, sizeof(question), MSG_WAITALL), 12);
    EXPECT_EQ(std::string(question, 4), std::string("\1\0\0\x8", 4));
  }
  void Close() { close(std::exchange(fd_, -1)); }
  static std::string Frame(char flags, const std::string& body) {
    return std::string({flags, static_cast<char>(body.size())}) + body;
  }
  // Its size takes 8 bytes.
  static std::string LongFrame(char flags, uint64_t size, const std::string& body) {
    const uint64_t big = htobe64(size);
    return std::string(1, static_cast<char>(flags | 2)) +
           std::string(reinterpret_cast<const char*>(&big), sizeof(big)) + body;
  }
  static std::string Message(uint64_t number, const std::string& payload) {
    const uint64_t big = htobe64(number);
    return Frame(1, "") + Frame(1, std::string(reinterpret_cast<const char*>(&big), sizeof(big))) +
           Frame(0, payload);
  }
  // False: the subscriber has left.
  bool Send(const std::string& bytes) const {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t size = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (size < 0) return false;
      sent += static_cast<size_t>(size);
    }
    return true;
  }

 private:
  void Greet(const std::string& type, char version) {
    if (fd_ >= 0) close(fd_);
    fd_ = accept(listener_, nullptr, nullptr);
    std::string greeting(64, '\0');
    greeting[0] = '\xff', greeting[9] = '\x7f', greeting[10] = version;
    greeting.replace(12, 4, "NULL");
    Send(greeting);
    // ZeroMQ takes what comes before both have said that they are ready for a mistake.
    std::string hello;
    for (char byte = 0; hello.find(type) == std::string::npos && recv(fd_, &byte, 1, 0) == 1;) hello += byte;
  }

  const int listener_ = testing::BoundTo("127.0.0.1:0");
  int fd_ = -1;
};

// ZeroMQ's own bound is of a part, and it keeps any number of them until the last has come.
TEST(RankMessages, AMessageWithoutAnEndIsNotKept) {
  RawPublisher engine;
  std::atomic<int> taken = 0;
  RankMessages messages("http://a:1", "127.0.0.1",
                        {{"steps", engine.port(), 0, [&](int32_t, uint64_t, absl::string_view message) {
                            EXPECT_EQ(message, "good");
                            ++taken;
                            return absl::OkStatus();
                          }}});
  messages.Follow(0);
  const std::string part(1000, 'x');
  const auto forever = [&](const std::string& bytes) {
    for (size_t sent = 0; sent < size_t{64} << 20; sent += bytes.size())
      if (!engine.Send(bytes)) return false;
    return true;
  };
  for (const std::string& bytes :
       {RawPublisher::LongFrame(1, part.size(), part), RawPublisher::Frame(1, ""),
        RawPublisher::LongFrame(0, uint64_t{1} << 62, part), RawPublisher::LongFrame(0, ~uint64_t{0}, part),
        RawPublisher::LongFrame(4, uint64_t{1} << 40, part)}) {
    engine.Accept();
    EXPECT_FALSE(forever(bytes)) << static_cast<int>(bytes[0]);
  }
  // What comes byte by byte is read as well.
  engine.Accept();
  for (const char byte : RawPublisher::Message(7, "good")) EXPECT_TRUE(engine.Send({byte}));
  while (taken == 0) absl::SleepFor(absl::Milliseconds(1));
}

// It is not waited for without end, and what is new is taken nevertheless.
TEST(RankMessages, AReplayThatFailsLeavesAGap) {
  RawPublisher engine, replay;
  std::atomic<uint64_t> last = 0;
  RankMessages messages(
      "http://a:1", "127.0.0.1",
      {{"steps", engine.port(), replay.port(), [&](int32_t, uint64_t number, absl::string_view) {
          last = number;
          return absl::OkStatus();
        }}});
  messages.Follow(0);
  engine.Accept();
  const auto fail = [&](const std::string& answer) {
    replay.AcceptDealer();
    replay.Send(answer);
    replay.Close();
  };
  fail(std::string("\xff\0\0", 3));
  EXPECT_TRUE(engine.Send(RawPublisher::Message(7, "a")));
  fail(RawPublisher::LongFrame(0, uint64_t{1} << 62, "x"));
  while (last != 7) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(engine.Send(RawPublisher::Message(8, "b")));
  while (last != 8) absl::SleepFor(absl::Milliseconds(1));
}

// --- counts of a stream ---

// Checks of the token counts in engines' streams: complete streams, and streams that have lost tokens.

constexpr StreamCounts::Options kVllm = {.prompt_tokens = 10, .max_new_tokens = 5, .context_tokens = 1'000};
constexpr StreamCounts::Options kSglang = {.cumulative = true, .prompt_tokens = 10, .max_new_tokens = 5};

StreamCounts After(const StreamCounts::Options& options, int chunks) {
  StreamCounts counts(options);
  for (int i = 1; i <= chunks; ++i) {
    const auto count = static_cast<uint32_t>(options.cumulative ? i : 1);
    EXPECT_TRUE(counts.OnChunk(Tokens{static_cast<uint32_t>(i)}, count).ok());
  }
  return counts;
}

struct End {
  Tokens ids;
  uint32_t count = 0, prompt_tokens = 0;
  EngineFinish finish = EngineFinish::kStop;
};

// vLLM repeats the last chunk, bfio's own servers count the whole output, and some engines send no count.
// An output may end at the longest sequence, counted with the engine's own prompt length.
TEST(StreamCountsTest, AnEndHasTheTokensThatHaveCome) {
  constexpr EngineFinish kLength = EngineFinish::kLength, kStop = EngineFinish::kStop;
  struct Case {
    StreamCounts::Options options;
    int chunks;
    End end;
    bool good;
  };
  const std::vector<Case> cases = {
      {kVllm, 5, {{5}, 1, 10, kLength}, true},  {kVllm, 5, {{}, 5, 10, kLength}, true},
      {kVllm, 5, {{}, 0, 0, kLength}, true},    {kVllm, 3, {{3}, 1, 10, kStop}, true},
      {kVllm, 3, {{4}, 1, 10, kStop}, false},   {kVllm, 4, {{4}, 1, 10, kLength}, false},
      {kVllm, 4, {{4}, 1, 996, kLength}, true}, {kVllm, 4, {{4}, 1, 995, kLength}, false},
      {kSglang, 3, {{3}, 3, 10, kStop}, true},  {kSglang, 2, {{3}, 3, 10, kStop}, false},
      {kSglang, 2, {{}, 3, 10, kStop}, false},  {kVllm, 0, {{1, 2}, 2, 10, kStop}, false},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto& [options, chunks, end, good] = cases[i];
    const absl::Status status =
        After(options, chunks).OnComplete(end.ids, end.count, end.prompt_tokens, end.finish);
    EXPECT_TRUE(good ? status.ok() : absl::IsDataLoss(status)) << i << ": " << status;
  }
}

// They would be part of the prompt of another engine, which may end with them.
TEST(StreamCountsTest, TokensBeyondTheVocabularyAreNone) {
  const auto status = [](uint32_t vocabulary, uint32_t id) {
    StreamCounts::Options options = kVllm;
    options.vocabulary = vocabulary;
    return StreamCounts(options).OnChunk(Tokens{id}, 1);
  };
  EXPECT_TRUE(status(100, 99).ok());
  EXPECT_TRUE(absl::IsDataLoss(status(100, 100)));
  EXPECT_TRUE(status(0, 0x7fffffff).ok());
  EXPECT_TRUE(absl::IsDataLoss(status(0, 0x80000000))) << "a negative one";
}

TEST(StreamCountsTest, AChunkThatCountsOtherTokensIsNotWhole) {
  for (const auto& [options, token, count] :
       {std::tuple(kVllm, 3u, 2u), {kSglang, 4u, 4u}, {kSglang, 2u, 2u}})
    EXPECT_TRUE(absl::IsDataLoss(After(options, 2).OnChunk(Tokens{token}, count))) << token;
}

// --- ranks that have no barrier ---

// Detects whether ranks step together.

// Runs steps of two decoding ranks; the second one takes `part` steps for each step of the first.
std::string Watch(BarrierWatch& watch, int64_t steps, double part) {
  double second = 0;
  for (int64_t i = 0; i < steps; ++i) {
    watch.OnStep(1, true);
    for (second += part; second >= 1; --second) watch.OnStep(2, true);
  }
  return watch.TakeWarning();
}

TEST(BarrierWatchTest, RanksThatStepByThemselvesAreNamedOnce) {
  BarrierWatch watch;
  EXPECT_EQ(Watch(watch, 5'000, 1), "") << "ranks of a barrier";
  EXPECT_EQ(Watch(watch, 5'000, 0.8), "") << "inferred steps that are sometimes split";
  watch = BarrierWatch();
  EXPECT_EQ(Watch(watch, BarrierWatch::kSteps * (BarrierWatch::kWindows - 1), 0.5), "");
  EXPECT_EQ(Watch(watch, BarrierWatch::kSteps * 2, 0.5),
            "one of its ranks took 128 steps while another that decoded took 64");
  EXPECT_EQ(Watch(watch, 5'000, 0.5), "");
}

TEST(BarrierWatchTest, CountsBeginAnewWithEachRankThatBeginsOrEnds) {
  BarrierWatch watch;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(Watch(watch, 100, 0.5), "");
    watch.OnStep(2, false);
  }
  watch = BarrierWatch();
  EXPECT_EQ(Watch(watch, 300, 0.5), "");
  watch.OnIdle(2);
  EXPECT_EQ(Watch(watch, 5'000, 0), "") << "a rank without decodes is not missed";
}

}  // namespace
}  // namespace bfio::router
