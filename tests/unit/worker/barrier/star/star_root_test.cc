// Rank 0 of the star barrier with scripted children, which send messages twice, or leave at a chosen moment.
#include <sys/socket.h>

#include <array>

#include "gmock/gmock.h"
#include "worker/barrier/barrier.h"
#include "worker/barrier/star/star_barrier.h"

namespace bfio::worker {
namespace {

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
