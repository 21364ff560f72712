// The star barrier's encryption: what a program on the path between two ranks can read.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <thread>

#include "tests/testing/barrier_ranks.h"
#include "worker/barrier/star/join_proof.h"
#include "worker/barrier/star/socket.h"
#include "worker/barrier/star/star_endpoint.h"

namespace bfio::worker {
namespace {

constexpr absl::Duration kNoDeadline = bfio::testing::BarrierRanks::kForever;

// Forwards one connection in both directions and keeps a copy of its bytes.
class Interceptor {
 public:
  explicit Interceptor(const Address& root) : root_(root) {
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
  // Call it after the ranks have ended.
  std::string Heard() {
    stop_.Set();
    ended_.wait(false);
    return heard_;
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
      if (fds[1].revents != 0 && !PassOn(joiner, root)) return;
      if (fds[2].revents != 0 && !PassOn(root, joiner)) return;
    }
  }
  bool PassOn(Connection& from, Connection& to) {
    std::array<uint8_t, 4096> piece;
    const auto got = from.ReadSome(absl::MakeSpan(piece));
    if (!got.has_value()) return false;
    heard_.append(reinterpret_cast<const char*>(piece.data()), *got);
    for (size_t sent = 0; sent < *got;) {
      const auto some = to.SendSome({piece.data() + sent, *got - sent});
      if (!some.has_value()) return false;
      sent += *some;
    }
    return true;
  }

  const Address root_;
  Address address_{"127.0.0.1", 0};
  Fd listener_;
  Signal stop_;
  std::atomic<bool> ended_ = false;
  std::string heard_;
  std::thread thread_;
};

std::unique_ptr<StarEndpoint> EndpointWith(bool tls) {
  auto endpoint = StarEndpoint::Create({.tls = tls});
  EXPECT_TRUE(endpoint.ok()) << endpoint.status();
  return *std::move(endpoint);
}

// A load that is easy to find in the copied bytes.
constexpr int64_t kLoad = 0x0123456789abcdef;

// What an interceptor between two ranks hears of a step.
std::string HeardOfALoad(bool tls) {
  auto root = EndpointWith(tls), joiner = EndpointWith(tls);
  const std::string offer = *root->Offer();
  const StarId id = *ParseStarId(offer);
  Interceptor interceptor(id.root);
  const auto step = [](StarEndpoint& endpoint, int rank, const std::string& at) {
    std::unique_ptr<Barrier> formed;
    auto barrier = endpoint.Form({1, rank, 2, at}, kNoDeadline, {});
    EXPECT_TRUE(barrier.ok()) << barrier.status();
    if (!barrier.ok()) return formed;
    formed = *std::move(barrier);
    const auto view = formed->AllReduce(1, {.load_tokens = rank == 1 ? kLoad : 0}, kNoDeadline);
    EXPECT_TRUE(view.ok() && view->sum_load_tokens == kLoad) << view.status();
    return formed;
  };
  std::thread other([&] { step(*joiner, 1, FormatStarId({interceptor.address(), id.secret})); });
  const std::unique_ptr<Barrier> kept = step(*root, 0, offer);
  other.join();
  return interceptor.Heard();
}

// TLS has no cipher that hides without noticing changes, so none of what is changed on its way is a sum.
TEST(StarTlsTest, AnInterceptorReadsNoLoads) {
  const auto contains = [](const std::string& heard) {
    return heard.find(std::string(reinterpret_cast<const char*>(&kLoad), sizeof(kLoad))) != std::string::npos;
  };
  EXPECT_TRUE(contains(HeardOfALoad(/*tls=*/false)));  // proves that the interceptor sees loads
  EXPECT_FALSE(contains(HeardOfALoad(/*tls=*/true)));
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
