// The star barrier's encryption: what a program on the path between two ranks can read and change.
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "tests/testing/barrier_ranks.h"
#include "worker/barrier/star/join_proof.h"
#include "worker/barrier/star/socket.h"
#include "worker/barrier/star/star_endpoint.h"

namespace bfio::worker {
namespace {

constexpr absl::Duration kNoDeadline = bfio::testing::BarrierRanks::kForever;

// Forwards one connection in both directions and keeps a copy of its bytes. `alter` may change each piece;
// `before` is the number of earlier bytes in this direction.
class Interceptor {
 public:
  enum Way { kToRoot = 0, kToJoiner = 1 };
  using Alter = std::function<void(Way way, size_t before, absl::Span<uint8_t> piece)>;

  explicit Interceptor(
      const Address& root, Alter alter = [](Way, size_t, absl::Span<uint8_t>) {})
      : root_(root), alter_(std::move(alter)) {
    auto listener = Listen(address_.host, &address_.port);
    EXPECT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    thread_ = std::thread([this] { Run(); });
  }
  ~Interceptor() {
    stop_.Set();
    thread_.join();
  }

  const Address& address() const { return address_; }
  // All bytes of both directions. Call it after the ranks have ended.
  std::string Heard() {
    stop_.Set();
    ended_.wait(false);
    return heard_[kToRoot] + heard_[kToJoiner];
  }

 private:
  void Run() {
    std::array<pollfd, 2> fds{{{stop_.fd(), POLLIN, 0}, {listener_.get(), POLLIN, 0}}};
    Accepted joiner;
    while (!joiner.fd.valid() && !stop_.IsSet()) {
      Poll(absl::MakeSpan(fds), MonotonicNs() + 100'000'000);
      joiner = Accept(listener_);
    }
    if (joiner.fd.valid()) {
      auto root = Connect(root_, MonotonicNs() + 10'000'000'000, stop_);
      if (root.ok()) Pass(Connection(std::move(joiner.fd)), Connection(*std::move(root)));
    }
    ended_ = true;
    ended_.notify_all();
  }

  void Pass(Connection joiner, Connection root) {
    std::array<pollfd, 3> fds{{{stop_.fd(), POLLIN, 0}, {joiner.fd(), POLLIN, 0}, {root.fd(), POLLIN, 0}}};
    while (Poll(absl::MakeSpan(fds), MonotonicNs() + 60'000'000'000) && fds[0].revents == 0) {
      if (fds[1].revents != 0 && !Pass(joiner, root, kToRoot)) return;
      if (fds[2].revents != 0 && !Pass(root, joiner, kToJoiner)) return;
    }
  }
  bool Pass(Connection& from, Connection& to, Way way) {
    std::array<uint8_t, 4096> piece;
    const auto got = from.ReadSome(absl::MakeSpan(piece));
    if (!got.has_value()) return false;
    alter_(way, heard_[way].size(), {piece.data(), *got});
    heard_[way].append(reinterpret_cast<const char*>(piece.data()), *got);
    for (size_t sent = 0; sent < *got;) {
      const auto some = to.SendSome({piece.data() + sent, *got - sent});
      if (!some.has_value()) return false;
      sent += *some;
    }
    return true;
  }

  const Address root_;
  const Alter alter_;
  Address address_{"127.0.0.1", 0};
  Fd listener_;
  Signal stop_;
  std::atomic<bool> ended_ = false;
  std::array<std::string, 2> heard_;
  std::thread thread_;
};

std::unique_ptr<StarEndpoint> EndpointWith(bool tls) {
  auto endpoint = StarEndpoint::Create({.tls = tls});
  EXPECT_TRUE(endpoint.ok()) << endpoint.status();
  return *std::move(endpoint);
}

// Runs two ranks with an interceptor between them; `body` is called with each rank's barrier.
using RankBody = std::function<void(int rank, Barrier& barrier)>;
void RunIntercepted(bool tls, Interceptor::Alter alter, const RankBody& body, std::string* heard) {
  auto root = EndpointWith(tls), joiner = EndpointWith(tls);
  const std::string offer = *root->Offer();
  const StarId id = *ParseStarId(offer);
  Interceptor interceptor(id.root, std::move(alter));
  std::thread other([&] {
    auto barrier = joiner->Form({1, 1, 2, FormatStarId({interceptor.address(), id.secret})}, kNoDeadline, {});
    ASSERT_TRUE(barrier.ok()) << barrier.status();
    body(1, **barrier);
  });
  auto barrier = root->Form({1, 0, 2, offer}, kNoDeadline, {});
  EXPECT_TRUE(barrier.ok()) << barrier.status();
  if (barrier.ok()) body(0, **barrier);
  other.join();
  if (heard != nullptr) *heard = interceptor.Heard();
}

// A load that is easy to find in the copied bytes.
constexpr int64_t kLoad = 0x0123456789abcdef;

std::string HeardOfALoad(bool tls) {
  std::string heard;
  RunIntercepted(
      tls, [](Interceptor::Way, size_t, absl::Span<uint8_t>) {},
      [](int rank, Barrier& barrier) {
        const auto view = barrier.AllReduce(1, {.load_tokens = rank == 1 ? kLoad : 0}, kNoDeadline);
        ASSERT_TRUE(view.ok()) << view.status();
        EXPECT_EQ(view->sum_load_tokens, kLoad);
      },
      &heard);
  return heard;
}

TEST(StarTlsTest, AnInterceptorReadsNoLoads) {
  const auto contains = [](const std::string& heard) {
    return heard.find(std::string(reinterpret_cast<const char*>(&kLoad), sizeof(kLoad))) != std::string::npos;
  };
  EXPECT_TRUE(contains(HeardOfALoad(/*tls=*/false)));  // proves that the interceptor sees loads
  EXPECT_FALSE(contains(HeardOfALoad(/*tls=*/true)));
}

// Changes one byte of one packet after the first step.
TEST(StarTlsTest, APacketChangedOnItsWayEndsTheBarrierAndIsNeverASum) {
  for (const auto way : {Interceptor::kToRoot, Interceptor::kToJoiner}) {
    for (size_t offset = 0; offset < 64; offset += 7) {
      std::atomic<bool> formed = false;
      std::atomic<int> changed = 0;
      const auto alter = [&](Interceptor::Way at, size_t, absl::Span<uint8_t> piece) {
        if (at == way && formed && changed == 0 && piece.size() > offset) {
          piece[offset] ^= 0x10;
          changed = 1;
        }
      };
      std::atomic<int> failed = 0;
      RunIntercepted(
          true, alter,
          [&](int rank, Barrier& barrier) {
            ASSERT_TRUE(barrier.AllReduce(1, {.load_tokens = 5}, kNoDeadline).ok());
            if (rank == 1) formed = true;
            for (int64_t step = 2; step < 1000; ++step) {
              const auto view = barrier.AllReduce(step, {.load_tokens = 5}, kNoDeadline);
              if (!view.ok()) {
                ++failed;
                break;
              }
              ASSERT_EQ(view->sum_load_tokens, 10);
              ASSERT_EQ(view->max_load_tokens, 5);
            }
          },
          nullptr);
      EXPECT_EQ(changed, 1);
      EXPECT_EQ(failed, 2) << "offset " << offset;
    }
  }
}

TEST(StarTlsTest, RanksWithAndWithoutTlsFormNoGroup) {
  for (const bool root_has_it : {true, false}) {
    auto root = EndpointWith(root_has_it), joiner = EndpointWith(!root_has_it);
    const std::string offer = *root->Offer();
    std::thread other([&] { EXPECT_FALSE(joiner->Form({1, 1, 2, offer}, absl::Seconds(2), {}).ok()); });
    EXPECT_FALSE(root->Form({1, 0, 2, offer}, absl::Seconds(2), {}).ok());
    other.join();
  }
}

// The handshake authenticates peers; besides, TLS itself needs the secret.
TEST(StarTlsTest, WithoutTheSecretThereIsNoSession) {
  Signal never;
  uint16_t port = 0;
  const auto listener = Listen("127.0.0.1", &port);
  ASSERT_TRUE(listener.ok());
  for (const uint8_t joiners : {1, 2}) {
    auto fd = Connect({"127.0.0.1", port}, MonotonicNs() + 10'000'000'000, never);
    ASSERT_TRUE(fd.ok()) << fd.status();
    Accepted accepted;
    while (!accepted.fd.valid()) accepted = Accept(*listener);
    Secret mine{}, its{};
    mine.fill(1);
    its.fill(joiners);
    auto joiner = TlsSession::Create(fd->get(), TlsEnd::kJoiner, its);
    auto acceptor = TlsSession::Create(accepted.fd.get(), TlsEnd::kAcceptor, mine);
    ASSERT_TRUE(joiner.ok() && acceptor.ok());
    absl::StatusOr<short> here = short{1}, there = short{1};
    const int64_t deadline = MonotonicNs() + 30'000'000'000;
    while (here.ok() && there.ok() && (*here != 0 || *there != 0) && MonotonicNs() < deadline) {
      if (*there != 0) there = (*joiner)->Handshake();
      if (*here != 0) here = (*acceptor)->Handshake();
    }
    EXPECT_EQ(here.ok() && there.ok(), joiners == 1) << here.status() << there.status();
  }
}

}  // namespace
}  // namespace bfio::worker
