// The star barrier against unauthenticated connections and impostors at rank 0's address, and its wire
// format.
#include <gmock/gmock.h>
#include <sys/socket.h>

#include <array>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/time/clock.h"
#include "tests/testing/barrier_ranks.h"
#include "worker/barrier/barrier.h"
#include "worker/barrier/star/join_proof.h"
#include "worker/barrier/star/rendezvous.h"
#include "worker/barrier/star/socket.h"
#include "worker/barrier/star/star_barrier.h"
#include "worker/barrier/star/star_endpoint.h"
#include "worker/barrier/star/wire.h"

namespace bfio::worker {
namespace {

constexpr absl::Duration kStarForever = absl::Seconds(60);

std::unique_ptr<StarEndpoint> MakeEndpoint(StarOptions options = {}) {
  auto endpoint = StarEndpoint::Create(options);
  EXPECT_TRUE(endpoint.ok()) << endpoint.status();
  return *std::move(endpoint);
}

// Forms a group in a thread, until it is destroyed.
class Forming {
 public:
  Forming(StarEndpoint& endpoint, const GroupSpec& group)
      : thread_([&endpoint, group] { EXPECT_TRUE(endpoint.Form(group, kStarForever, {}).ok()); }) {}
  ~Forming() { thread_.join(); }

 private:
  std::thread thread_;
};

Connection ConnectTo(const std::string& offer) {
  Signal never;
  auto fd = Connect(ParseStarId(offer)->root, MonotonicNs() + 10'000'000'000, never);
  EXPECT_TRUE(fd.ok()) << fd.status();
  return fd.ok() ? Connection(*std::move(fd)) : Connection();
}

// Number of bytes that the peer sends before it closes the connection; absent if it does not close.
std::optional<size_t> BytesUntilClosed(Connection& connection) {
  pollfd fd{connection.fd(), POLLIN, 0};
  for (size_t bytes = 0;; ++bytes) {
    if (!Poll({&fd, 1}, MonotonicNs() + 30'000'000'000)) return std::nullopt;
    char byte;
    if (recv(connection.fd(), &byte, 1, MSG_DONTWAIT) <= 0) return bytes;
  }
}
bool IsClosedByPeer(Connection& connection) {
  return BytesUntilClosed(connection).has_value();
}

bool AwaitBytes(Connection& connection, size_t bytes) {
  pollfd fd{connection.fd(), POLLIN, 0};
  for (;;) {
    if (!Poll({&fd, 1}, MonotonicNs() + 30'000'000'000)) return false;
    switch (connection.ReadMessage(bytes)) {
      case Connection::Read::kPartial: continue;
      case Connection::Read::kMessage: return true;
      case Connection::Read::kClosed: return false;
    }
  }
}

Nonce NonceOf(uint8_t value) {
  Nonce nonce{};
  nonce.fill(value);
  return nonce;
}

// Connects as a rank that knows the offer's secret, up to and including its introduction.
Connection Introduce(const std::string& offer, const Handshake& introduction) {
  Connection connection = ConnectTo(offer);
  JoinerProof proof(ParseStarId(offer)->secret, NonceOf(1));
  EXPECT_TRUE(connection.Send(proof.Open()));
  EXPECT_TRUE(AwaitBytes(connection, kChallengeBytes));
  const auto sealed = proof.OnChallenge(connection.message(), introduction);
  EXPECT_TRUE(sealed.has_value());
  if (sealed.has_value()) {
    EXPECT_TRUE(connection.Send(*sealed));
  }
  return connection;
}

TEST(ConnectTest, HostsMayBeNamesAndConnectingCanBeInterrupted) {
  uint16_t port = 0;
  auto listener = Listen("localhost", &port);
  ASSERT_TRUE(listener.ok());
  Signal interrupt;
  const int64_t deadline_ns = MonotonicNs() + 30'000'000'000;
  EXPECT_TRUE(Connect({"localhost", port}, deadline_ns, interrupt).ok());
  EXPECT_TRUE(absl::IsUnavailable(Connect({"no such host", port}, deadline_ns, interrupt).status()));
  interrupt.Set();
  EXPECT_TRUE(absl::IsCancelled(Connect({"localhost", port}, deadline_ns, interrupt).status()));
}

// --- proofs ---

class JoinProofTest : public ::testing::Test {
 protected:
  static constexpr uint8_t kSecret = 3;
  const Handshake introduction_{WireType::kJoin, 7, 1, 2, {"worker", 4711}};
  const Handshake answer_{WireType::kWelcome, 7, 0, 2, {"parent", 4712}};
  JoinerProof joiner_{NonceOf(kSecret), NonceOf(1)};
  AcceptorProof acceptor_{NonceOf(kSecret), NonceOf(2)};
};

TEST_F(JoinProofTest, AnyChangedBitIsRejected) {
  const auto challenge = *acceptor_.OnOpening(joiner_.Open());
  for (size_t bit = 0; bit < 8 * challenge.size(); ++bit) {
    auto changed = challenge;
    changed[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    ASSERT_FALSE(joiner_.OnChallenge(changed, introduction_).has_value()) << bit;
  }
  const Sealed introduction = *joiner_.OnChallenge(challenge, introduction_);
  const Sealed answer = acceptor_.Answer(answer_);
  for (size_t bit = 0; bit < 8 * kSealedBytes; ++bit) {
    Sealed changed = introduction;
    changed[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    ASSERT_FALSE(acceptor_.OnIntroduction(changed).has_value()) << bit;
    changed = answer;
    changed[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    ASSERT_FALSE(joiner_.OnAnswer(changed).has_value()) << bit;
  }
}

// A message is not valid on another connection, or in the other direction.
TEST_F(JoinProofTest, ReplayedAndReflectedMessagesAreRejected) {
  const auto challenge = *acceptor_.OnOpening(joiner_.Open());
  const Sealed introduction = *joiner_.OnChallenge(challenge, introduction_);
  AcceptorProof next(NonceOf(kSecret), NonceOf(5));
  ASSERT_TRUE(next.OnOpening(joiner_.Open()).has_value());
  EXPECT_FALSE(next.OnIntroduction(introduction).has_value());
  JoinerProof other(NonceOf(kSecret), NonceOf(6));
  EXPECT_FALSE(other.OnChallenge(challenge, introduction_).has_value());
  EXPECT_FALSE(joiner_.OnAnswer(introduction).has_value()) << "its own words";
  EXPECT_FALSE(acceptor_.OnIntroduction(acceptor_.Answer(introduction_)).has_value());
}

TEST(StarTest, CommunicatorIdsAreParsedOrRefusedWithoutShowingTheSecret) {
  for (const char* host : {"10.0.0.7", "::1", "worker-3.example"}) {
    const StarId id{{host, 4711}, NonceOf(0xa5)};
    const auto back = ParseStarId(FormatStarId(id));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->root, id.root);
    EXPECT_EQ(back->secret, id.secret);
  }
  const std::string secret(64, 'd');
  for (const std::string& bad :
       {std::string("nowhere"), std::string("10.0.0.7:4711"), std::string("10.0.0.7:4711/"),
        "10.0.0.7:4711/" + secret + "d", "10.0.0.7:4711/x" + secret.substr(1), "nowhere/" + secret,
        "/" + secret, "10.0.0.7:0/" + secret}) {
    const auto joined = MakeEndpoint()->Form({1, 1, 2, bad}, kStarForever, {});
    EXPECT_TRUE(absl::IsInvalidArgument(joined.status())) << bad;
    EXPECT_THAT(std::string(joined.status().message()), ::testing::Not(::testing::HasSubstr("dddd")));
  }
}

TEST(StarTest, UnauthenticatedConnectionsAreDropped) {
  auto root = MakeEndpoint({.handshake_timeout = absl::Milliseconds(50)});
  auto leaf = MakeEndpoint();
  const std::string offer = *root->Offer();
  std::thread former([&] {
    const auto barrier = root->Form({5, 0, 2, offer}, kStarForever, {});
    EXPECT_TRUE(barrier.ok()) << barrier.status();
  });
  // A client of another protocol, whose message is longer than a handshake.
  Connection http = ConnectTo(offer);
  EXPECT_TRUE(http.Send(std::vector<uint8_t>(400, 'G')));
  EXPECT_TRUE(IsClosedByPeer(http));
  // One that sends nothing, and two that stop within the handshake.
  Connection silent = ConnectTo(offer), half = ConnectTo(offer), opened = ConnectTo(offer);
  EXPECT_TRUE(half.Send(absl::MakeConstSpan(Encode(Opening{})).first(20)));
  EXPECT_TRUE(opened.Send(Encode(Opening{})));
  EXPECT_EQ(BytesUntilClosed(silent), 0u);
  EXPECT_EQ(BytesUntilClosed(half), 0u);
  EXPECT_EQ(BytesUntilClosed(opened), kChallengeBytes);
  // A handshake without a proof: epoch, rank and size alone admit no peer.
  Connection old = ConnectTo(offer);
  EXPECT_TRUE(old.Send(Encode(Handshake{WireType::kJoin, 5, 1, 2, {"h", 1}})));
  EXPECT_EQ(BytesUntilClosed(old), 0u);
  // With the secret, but with another epoch, another group size, a rank that does not exist, or a type of
  // message that is not valid here.
  for (const Handshake& wrong :
       {Handshake{WireType::kJoin, 4, 1, 2, {"h", 1}}, Handshake{WireType::kJoin, 5, 1, 3, {"h", 1}},
        Handshake{WireType::kJoin, 5, 2, 2, {"h", 1}}, Handshake{WireType::kJoin, 5, -1, 2, {"h", 1}},
        Handshake{WireType::kAttach, 5, 1, 2, {"h", 1}}}) {
    Connection connection = Introduce(offer, wrong);
    EXPECT_EQ(BytesUntilClosed(connection), kSealedBytes);
  }
  const auto barrier = leaf->Form({5, 1, 2, offer}, kStarForever, {});
  EXPECT_TRUE(barrier.ok()) << barrier.status();
  former.join();
}

// The peer has the right port, epoch, rank and size, but another secret.
TEST(StarTest, WithoutTheSecretAPeerBecomesNoRankAndLearnsNothing) {
  auto root = MakeEndpoint(), leaf = MakeEndpoint(), intruder = MakeEndpoint();
  const std::string offer = *root->Offer();
  const std::string guess = FormatStarId({ParseStarId(offer)->root, ParseStarId(*intruder->Offer())->secret});
  const Forming former(*root, {5, 0, 2, offer});
  const auto joined = intruder->Form({5, 1, 2, guess}, absl::Milliseconds(200), {});
  EXPECT_TRUE(absl::IsDeadlineExceeded(joined.status())) << joined.status();
  // A peer that continues although rank 0 proves another secret.
  Connection bold = ConnectTo(offer);
  JoinerProof proof(ParseStarId(guess)->secret, NonceOf(1));
  AcceptorProof accomplice(ParseStarId(guess)->secret, NonceOf(2));
  EXPECT_TRUE(bold.Send(proof.Open()));
  EXPECT_TRUE(AwaitBytes(bold, kChallengeBytes));
  EXPECT_TRUE(bold.Send(
      *proof.OnChallenge(*accomplice.OnOpening(proof.Open()), {WireType::kJoin, 5, 1, 2, {"h", 1}})));
  EXPECT_EQ(BytesUntilClosed(bold), 0u) << "nothing but the challenge";
  EXPECT_TRUE(leaf->Form({5, 1, 2, offer}, kStarForever, {}).ok());
}

TEST(StarTest, AnImpostorAtRankZerosAddressGetsOnlyANonce) {
  uint16_t port = 0;
  auto listener = Listen("127.0.0.1", &port);
  ASSERT_TRUE(listener.ok());
  const std::string offer = FormatStarId({{"127.0.0.1", port}, NonceOf(9)});
  auto leaf = MakeEndpoint();
  std::thread joins([&] {
    const auto joined = leaf->Form({5, 1, 2, offer}, absl::Milliseconds(300), {});
    EXPECT_TRUE(absl::IsDeadlineExceeded(joined.status())) << joined.status();
  });
  int met = 0;
  pollfd fd{listener->get(), POLLIN, 0};
  while (Poll({&fd, 1}, MonotonicNs() + 1'000'000'000)) {
    Connection connection(Accept(*listener).fd);
    AcceptorProof impostor(NonceOf(8), NonceOf(2));
    ++met;
    if (!AwaitBytes(connection, kOpeningBytes)) continue;
    connection.Send(*impostor.OnOpening(connection.message()));
    EXPECT_EQ(BytesUntilClosed(connection), 0u);
  }
  EXPECT_GT(met, 0);
  joins.join();
}

// Opens connections one after the other until it is destroyed; half of them send nothing, half an opening
// like a rank.
class Flood {
 public:
  explicit Flood(const std::string& offer) : thread_([this, offer] { Run(offer); }) {}
  ~Flood() {
    over_ = true;
    thread_.join();
  }
  void AwaitConnections(int count) const {
    for (int i = 0; i < 60'000 && made_ < count; ++i) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_GE(made_, count);
  }

 private:
  void Run(const std::string& offer) {
    std::deque<Connection> open;
    while (!over_) {
      Signal never;
      auto fd = Connect(ParseStarId(offer)->root, MonotonicNs() + 100'000'000, never);
      ++made_;
      if (!fd.ok()) continue;
      open.emplace_back(*std::move(fd));
      if (made_ % 2 == 0) open.back().Send(Encode(Opening{}));
      if (open.size() > 400) open.pop_front();
    }
  }

  std::atomic<bool> over_ = false;
  std::atomic<int> made_ = 0;
  std::thread thread_;
};

TEST(StarTest, AFloodKeepsNeitherTheGroupFromFormingNorRankZeroBeyondItsDeadline) {
  auto root = MakeEndpoint(), one = MakeEndpoint(), two = MakeEndpoint();
  const std::string offer = *root->Offer();
  const Flood flood(offer), another(offer);
  flood.AwaitConnections(300);
  {
    const Forming former(*root, {1, 0, 3, offer}), other(*two, {1, 2, 3, offer}),
        third(*one, {1, 1, 3, offer});
  }
  // During the whole time there are unauthenticated connections to serve.
  const auto barrier = root->Form({2, 0, 2, offer}, absl::Milliseconds(300), {});
  EXPECT_TRUE(absl::IsDeadlineExceeded(barrier.status())) << barrier.status();
  EXPECT_THAT(MissingRanks(barrier.status()), ::testing::ElementsAre(1));
}

TEST(StarTest, ARankThatJoinedAndDiedMayJoinAgain) {
  auto root = MakeEndpoint();
  auto one = MakeEndpoint(), two = MakeEndpoint();
  const std::string offer = *root->Offer();
  const Forming former(*root, {1, 0, 3, offer});
  { const Connection dies = Introduce(offer, {WireType::kJoin, 1, 1, 3, {"h", 1}}); }
  const Forming other(*two, {1, 2, 3, offer}), third(*one, {1, 1, 3, offer});
}

TEST(StarTest, ARankOfAnOlderEpochIsRefusedAtOnce) {
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

TEST(StarTest, ARankOfANewerEpochWaitsForRankZero) {
  auto root = MakeEndpoint(), leaf = MakeEndpoint();
  const std::string offer = *root->Offer();
  std::stop_source stop;
  std::thread former([&] {
    EXPECT_FALSE(root->Form({8, 0, 2, offer}, kStarForever, stop.get_token()).ok());
    EXPECT_TRUE(root->Form({9, 0, 2, offer}, kStarForever, {}).ok());
  });
  std::thread early([&] { EXPECT_TRUE(leaf->Form({9, 1, 2, offer}, kStarForever, {}).ok()); });
  // Provokes the rejection that the early rank must survive.
  Connection probe = Introduce(offer, {WireType::kJoin, 9, 1, 2, {"h", 1}});
  EXPECT_TRUE(IsClosedByPeer(probe));
  stop.request_stop();
  early.join();
  former.join();
}

// Which rank times out first depends on which began to wait first; rank 0 names the missing rank in either
// case.
TEST(StarTest, AnErrorNamesTheMissingRank) {
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

// --- rank 0 ---

// Rank 0 of the star barrier with scripted children, which send messages twice, or leave at a chosen moment.

constexpr uint64_t kEpoch = 1;
constexpr int kRanks = 3;
// Only bounds the time of a failing test: no test here waits for a deadline.
constexpr absl::Duration kTimeout = absl::Seconds(60);

class StarRootTest : public ::testing::Test {
 protected:
  StarRootTest() {
    Links links;
    for (int rank = 1; rank < kRanks; ++rank) {
      std::array<int, 2> ends{};
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
      links.children.emplace_back(Fd(ends[0]));
      children_[rank] = Fd(ends[1]);
    }
    root_ = std::make_unique<StarBarrier>(GroupSpec{kEpoch, 0, kRanks, ""}, StarRanks{-1, 1},
                                          std::move(links), std::make_shared<Signal>());
  }

  // --- actions of a child ---

  void Send(int rank, const Frame& frame) {
    const auto bytes = Encode(frame);
    EXPECT_EQ(send(children_[rank].get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  bool Receive(int rank, size_t size) {
    std::vector<char> bytes(size);
    return recv(children_[rank].get(), bytes.data(), size, MSG_WAITALL) == static_cast<ssize_t>(size);
  }
  void Leave(int rank) { children_[rank].Close(); }

  static Frame Reduce(int rank) {
    return {WireType::kReduce, kEpoch, rank, absl::StatusCode::kOk, 1, ViewOf({.active = 1})};
  }

  std::unique_ptr<StarBarrier> root_;

 private:
  std::array<Fd, kRanks> children_;
};

TEST_F(StarRootTest, ASecondContributionDoesNotCountForAnotherChild) {
  Send(1, Reduce(1));
  Send(1, Reduce(1));
  const auto view = root_->AllReduce(1, {.active = 1}, kTimeout);
  EXPECT_TRUE(absl::IsInternal(view.status())) << view.status();
  EXPECT_THAT(std::string(view.status().message()), ::testing::HasSubstr("rank 1"));
}

TEST_F(StarRootTest, ALostChildDoesNotFailACompleteStep) {
  Send(1, Reduce(1));
  Send(2, Reduce(2));
  Leave(1);
  const auto view = root_->AllReduce(1, {.active = 1}, kTimeout);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->sum_active, kRanks);
  EXPECT_TRUE(Receive(2, kFrameBytes));
  // The next step reports the loss.
  EXPECT_TRUE(absl::IsUnavailable(root_->AllReduce(2, {}, kTimeout).status()));
}

}  // namespace
}  // namespace bfio::worker
