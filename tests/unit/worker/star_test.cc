// The star barrier against strangers on its port, and its wire format.
#include <gmock/gmock.h>
#include <sys/socket.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/rng.h"
#include "gtest/gtest.h"
#include "tests/testing/barrier_ranks.h"
#include "worker/barrier/missing_ranks.h"
#include "worker/barrier/star/rendezvous.h"
#include "worker/barrier/star/socket.h"
#include "worker/barrier/star/star_endpoint.h"
#include "worker/barrier/star/topology.h"
#include "worker/barrier/star/wire.h"

namespace bfio::worker {
namespace {

constexpr absl::Duration kStarForever = absl::Seconds(60);

std::unique_ptr<StarEndpoint> MakeEndpoint(StarOptions options = {}) {
  auto endpoint = StarEndpoint::Create(options);
  EXPECT_TRUE(endpoint.ok()) << endpoint.status();
  return *std::move(endpoint);
}

Connection ConnectTo(const std::string& offer) {
  Signal never;
  auto fd = Connect(*ParseAddress(offer), MonotonicNs() + 10'000'000'000, never);
  EXPECT_TRUE(fd.ok()) << fd.status();
  return Connection(*std::move(fd));
}

// Waits until the peer closes; bytes it sends before are ignored.
bool IsClosedByPeer(Connection& connection) {
  pollfd fd{connection.fd(), POLLIN, 0};
  for (;;) {
    if (!Poll({&fd, 1}, MonotonicNs() + 30'000'000'000)) return false;
    char byte;
    if (recv(connection.fd(), &byte, 1, MSG_DONTWAIT) <= 0) return true;
  }
}

TEST(TopologyTest, EveryRankButTheFirstIsTheChildOfItsParent) {
  for (const int fan_out : {1, 2, 3, 16}) {
    for (const int world : {1, 2, 17, 18, 64, 100}) {
      int children = 0;
      for (int rank = 0; rank < world; ++rank) {
        const RankRange range = ChildrenOf(rank, fan_out, world);
        children += range.size();
        for (int child = range.begin; child < range.end; ++child) EXPECT_EQ(ParentOf(child, fan_out), rank);
      }
      EXPECT_EQ(children, world - 1);
    }
  }
}

TEST(WireTest, MessagesSurviveTheWire) {
  const Handshake handshake{WireType::kJoin, 7, 3, 9, {"worker-3.example", 4711}};
  const auto got = DecodeHandshake(Encode(handshake));
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->epoch, 7u);
  EXPECT_EQ(got->rank, 3);
  EXPECT_EQ(got->world_size, 9);
  EXPECT_EQ(got->address, handshake.address);
  const Frame frame{WireType::kError,
                    1u << 31,
                    5,
                    absl::StatusCode::kInternal,
                    -1,
                    6,
                    1000,
                    {1, 2, 3, 4, -5, 8, 0x80000001}};
  const auto back = DecodeFrame(Encode(frame));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->epoch, frame.epoch);
  EXPECT_EQ(back->code, absl::StatusCode::kInternal);
  EXPECT_EQ(back->step, -1);
  EXPECT_EQ(back->call, 6u);
  EXPECT_EQ(back->payload, 1000u);
  EXPECT_EQ(back->view.sum_active, -5);
  EXPECT_EQ(back->view.max_rows, 8);
  EXPECT_EQ(back->view.stop_flags, 0x80000001u);
}

TEST(WireTest, GarbageIsNoMessage) {
  Rng rng(1);
  for (int i = 0; i < 2000; ++i) {
    std::vector<uint8_t> bytes(i % 2 == 0 ? kHandshakeBytes : kFrameBytes);
    for (auto& byte : bytes) byte = static_cast<uint8_t>(rng.Next());
    EXPECT_FALSE(DecodeHandshake(bytes).has_value());
    EXPECT_FALSE(DecodeFrame(bytes).has_value());
  }
  auto join = Encode(Handshake{WireType::kJoin, 1, 0, 1, {"h", 1}});
  join[26] = 0xff;  // a host longer than the message
  join[27] = 0xff;
  EXPECT_FALSE(DecodeHandshake(join).has_value());
  EXPECT_FALSE(DecodeFrame(Encode(Frame{WireType::kJoin})).has_value());
  auto reduce = Encode(Frame{WireType::kReduce});
  EXPECT_TRUE(DecodeFrame(reduce).has_value());
  ++reduce[4];  // of another version
  EXPECT_FALSE(DecodeFrame(reduce).has_value());
}

TEST(AddressTest, HostsAndPorts) {
  EXPECT_EQ(*ParseAddress("a.example:80"), (Address{"a.example", 80}));
  EXPECT_EQ(*ParseAddress("[::1]:80"), (Address{"::1", 80}));
  EXPECT_EQ(FormatAddress({"::1", 80}), "[::1]:80");
  for (const char* bad : {"", "a", "a:", ":80", "a:0", "a:65536", "a:b"})
    EXPECT_FALSE(ParseAddress(bad).ok()) << bad;
}

TEST(StarTest, StrangersAreDroppedAndTheGroupForms) {
  auto root = MakeEndpoint({.handshake_timeout = absl::Milliseconds(50)});
  auto leaf = MakeEndpoint();
  const std::string offer = *root->Offer();
  std::thread former([&] {
    const auto barrier = root->Form({5, 0, 2, offer}, kStarForever, {});
    EXPECT_TRUE(barrier.ok()) << barrier.status();
  });
  // A client of another protocol, longer than a handshake.
  Connection http = ConnectTo(offer);
  EXPECT_TRUE(http.Send(std::vector<uint8_t>(400, 'G')));
  EXPECT_TRUE(IsClosedByPeer(http));
  // One that says nothing, and one that stops in mid-sentence.
  Connection silent = ConnectTo(offer), half = ConnectTo(offer);
  const auto join = Encode(Handshake{WireType::kJoin, 5, 1, 2, {"h", 1}});
  EXPECT_TRUE(half.Send(absl::MakeConstSpan(join).first(100)));
  EXPECT_TRUE(IsClosedByPeer(silent));
  EXPECT_TRUE(IsClosedByPeer(half));
  // Ours, but another epoch, another group size, a rank that does not exist, a type that does not belong
  // here.
  for (const Handshake& wrong :
       {Handshake{WireType::kJoin, 4, 1, 2, {"h", 1}}, Handshake{WireType::kJoin, 5, 1, 3, {"h", 1}},
        Handshake{WireType::kJoin, 5, 2, 2, {"h", 1}}, Handshake{WireType::kJoin, 5, -1, 2, {"h", 1}},
        Handshake{WireType::kAttach, 5, 1, 2, {"h", 1}}}) {
    Connection connection = ConnectTo(offer);
    EXPECT_TRUE(connection.Send(Encode(wrong)));
    EXPECT_TRUE(IsClosedByPeer(connection));
  }
  const auto barrier = leaf->Form({5, 1, 2, offer}, kStarForever, {});
  EXPECT_TRUE(barrier.ok()) << barrier.status();
  former.join();
}

TEST(StarTest, ARankThatJoinedAndDiedMayComeAgain) {
  auto root = MakeEndpoint();
  auto one = MakeEndpoint(), two = MakeEndpoint();
  const std::string offer = *root->Offer();
  std::thread former([&] { EXPECT_TRUE(root->Form({1, 0, 3, offer}, kStarForever, {}).ok()); });
  {
    Connection dies = ConnectTo(offer);
    EXPECT_TRUE(dies.Send(Encode(Handshake{WireType::kJoin, 1, 1, 3, {"h", 1}})));
  }
  std::thread other([&] { EXPECT_TRUE(two->Form({1, 2, 3, offer}, kStarForever, {}).ok()); });
  EXPECT_TRUE(one->Form({1, 1, 3, offer}, kStarForever, {}).ok());
  other.join();
  former.join();
}

TEST(StarTest, ARankOfAnOlderEpochIsToldSoAtOnce) {
  auto root = MakeEndpoint(), leaf = MakeEndpoint();
  const std::string offer = *root->Offer();
  std::stop_source stop;
  std::thread former([&] {
    EXPECT_TRUE(absl::IsCancelled(root->Form({9, 0, 2, offer}, kStarForever, stop.get_token()).status()));
  });
  const auto late = leaf->Form({8, 1, 2, offer}, kStarForever, {});
  EXPECT_TRUE(absl::IsUnavailable(late.status())) << late.status();
  stop.request_stop();
  former.join();
}

TEST(StarTest, ARankOfANewerEpochWaitsForRankZeroToFollow) {
  auto root = MakeEndpoint(), leaf = MakeEndpoint();
  const std::string offer = *root->Offer();
  std::stop_source stop;
  std::thread former([&] {
    EXPECT_FALSE(root->Form({8, 0, 2, offer}, kStarForever, stop.get_token()).ok());
    EXPECT_TRUE(root->Form({9, 0, 2, offer}, kStarForever, {}).ok());
  });
  std::thread early([&] { EXPECT_TRUE(leaf->Form({9, 1, 2, offer}, kStarForever, {}).ok()); });
  // Provoke the rejection that the early rank must survive.
  Connection probe = ConnectTo(offer);
  EXPECT_TRUE(probe.Send(Encode(Handshake{WireType::kJoin, 9, 1, 2, {"h", 1}})));
  EXPECT_TRUE(IsClosedByPeer(probe));
  stop.request_stop();
  early.join();
  former.join();
}

TEST(StarTest, NobodyAtRankZerosAddressIsADeadline) {
  auto leaf = MakeEndpoint();
  std::string offer;
  {
    auto gone = MakeEndpoint();
    offer = *gone->Offer();
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(leaf->Form({1, 1, 2, offer}, absl::Milliseconds(100), {}).status()));
}

// Whose patience ends first depends on who began to wait first; rank 0 knows all the same.
TEST(StarTest, AnErrorNamesTheRankThatDidNotCome) {
  for (const bool rank_zero_first : {true, false}) {
    bfio::testing::BarrierRanks ranks("star", 4);
    std::mutex mutex;
    int failed = 0;
    std::condition_variable all;
    ranks.Run(1, [&](int rank, std::unique_ptr<Barrier> barrier) {
      std::unique_lock lock(mutex);
      if (rank == 2) {
        all.wait(lock, [&] { return failed == 3; });
        return;
      }
      lock.unlock();
      const bool first = (rank == 0) == rank_zero_first;
      const auto view = barrier->AllReduce(1, {}, first ? absl::Milliseconds(500) : kStarForever);
      EXPECT_FALSE(view.ok());
      const std::vector<int32_t> missing = MissingRanks(view.status());
      if (rank == 0) {
        EXPECT_THAT(missing, ::testing::Contains(2)) << view.status();
      } else {
        EXPECT_THAT(missing, ::testing::IsEmpty()) << view.status();
      }
      lock.lock();
      ++failed;
      all.notify_all();
    });
  }
}

TEST(StarTest, AFormingThatFailsNamesTheRankThatDidNotCome) {
  bfio::testing::BarrierRanks ranks("star", 3);
  ranks.Offer();
  std::thread one([&] { EXPECT_FALSE(ranks.Form(1, 1, absl::Milliseconds(200)).ok()); });
  const auto zero = ranks.Form(0, 1, absl::Milliseconds(200));
  EXPECT_THAT(MissingRanks(zero.status()), ::testing::Contains(2));
  one.join();
}

TEST(StarTest, ANonsensicalCommunicatorIdIsInvalid) {
  auto leaf = MakeEndpoint();
  EXPECT_TRUE(absl::IsInvalidArgument(leaf->Form({1, 1, 2, "nowhere"}, kStarForever, {}).status()));
}

TEST(StarTest, AnUnresolvableHostCannotListen) {
  EXPECT_TRUE(absl::IsUnavailable(StarEndpoint::Create({.host = "no such host"}).status()));
}

}  // namespace
}  // namespace bfio::worker
