// Ranks as threads that meet in a barrier of a named kind.
//
// Purpose: tests that hold for every barrier that runs without a GPU.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "worker/barrier/star/star_endpoint.h"
#ifdef BFIO_FAKE_NCCL
#include "tests/unit/worker/barrier/nccl/fake_nccl.h"
#include "worker/barrier/nccl/nccl_barrier.h"
#endif

namespace bfio::testing {

inline std::unique_ptr<worker::BarrierEndpoint> FakeNcclEndpoint(int rank) {
#ifdef BFIO_FAKE_NCCL
  return *worker::NcclEndpoint::Create({.device = rank});
#else
  return nullptr;
#endif
}

class BarrierRanks {
 public:
  // Timeout against hangs, not a performance bound.
  static constexpr absl::Duration kForever = absl::Seconds(60);

  // `kind`: "star", "tree" (the star with a fan-out of 3, so that few ranks form a deep tree), either with
  // the suffix "_tls", or with a fake NCCL "nccl".
  BarrierRanks(const std::string& kind, int ranks) {
    for (int i = 0; i < ranks; ++i) {
      if (kind == "nccl") {
        endpoints_.push_back(FakeNcclEndpoint(i));
        continue;
      }
      auto endpoint = worker::StarEndpoint::Create(
          {.fan_out = kind.starts_with("tree") ? 3 : 16, .tls = kind.ends_with("_tls")});
      EXPECT_TRUE(endpoint.ok()) << endpoint.status();
      endpoints_.push_back(*std::move(endpoint));
    }
  }

  std::vector<std::unique_ptr<worker::BarrierEndpoint>>& endpoints() { return endpoints_; }
  int size() const { return static_cast<int>(endpoints_.size()); }
  // Gets rank 0's offer; called before the ranks form the group.
  void Offer() { id_ = *endpoints_[0]->Offer(); }

  worker::GroupSpec SpecOf(int rank, uint64_t epoch) const { return {epoch, rank, size(), id_}; }
  absl::StatusOr<std::unique_ptr<worker::Barrier>> Form(int rank, uint64_t epoch,
                                                        absl::Duration timeout = kForever,
                                                        std::stop_token stop = {}) {
    return endpoints_[rank]->Form(SpecOf(rank, epoch), timeout, stop);
  }

  // Forms the group and runs `body` on one thread per rank.
  void Run(uint64_t epoch, const std::function<void(int rank, std::unique_ptr<worker::Barrier>)>& body) {
    Offer();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) {
      threads.emplace_back([&, rank] {
        auto barrier = Form(rank, epoch);
        ASSERT_TRUE(barrier.ok()) << rank << ": " << barrier.status();
        body(rank, *std::move(barrier));
      });
    }
    for (auto& thread : threads) thread.join();
  }

 private:
  std::vector<std::unique_ptr<worker::BarrierEndpoint>> endpoints_;
  std::string id_;
};

}  // namespace bfio::testing
