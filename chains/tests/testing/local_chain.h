// A chain of servers within one process, without a network. Threads: the caller of Send runs the next
// server's Take.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "chains/pipeline/chain_backend.h"
#include "chains/pipeline/stage.h"
#include "gtest/gtest.h"

namespace bfio::testing {

// Hands micro-batches to a server in the same process.
class DirectOutlet final : public worker::Outlet {
 public:
  explicit DirectOutlet(std::shared_ptr<worker::Inlet> next) : next_(std::move(next)) {}
  absl::Status Send(worker::MicroBatch batch) override { return next_->Take(std::move(batch)); }

 private:
  const std::shared_ptr<worker::Inlet> next_;
};

// A chain whose head has the blocks up to ends[0], and each stage those up to the next end; `part` makes the
// backend of the blocks [first, end).
inline std::unique_ptr<worker::DecodeEngine> MakeLocalChain(
    const std::vector<int32_t>& ends, int64_t hidden, const worker::ChainBackendOptions& chain,
    const worker::DecodeOptions& options,
    const std::function<std::unique_ptr<worker::PartBackend>(int32_t first, int32_t end, bool head)>& part) {
  const auto fail = [](const absl::Status& why) { ADD_FAILURE() << why; };
  const auto returns = std::make_shared<worker::Returns>(fail);
  std::shared_ptr<worker::Inlet> next = returns;
  for (size_t i = ends.size() - 1; i > 0; --i) {
    next =
        std::make_shared<worker::Stage>(part(ends[i - 1], ends[i], false), worker::BoundsOf(hidden, options),
                                        i + 1 == ends.size(), std::make_unique<DirectOutlet>(next), fail);
  }
  auto engine = worker::DecodeEngine::Create(
      options, std::make_unique<worker::ChainBackend>(chain, part(0, ends[0], true),
                                                      std::make_unique<DirectOutlet>(next), returns));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

}  // namespace bfio::testing
