// An outlet that hands micro-batches to a server in the same process.
//
// Purpose: chains of servers within one test, without a network. Ownership: shares the next server's inlet.
// Threads: the caller of Send runs the next server's Take.
#ifndef BFIO_CHAINS_TESTS_TESTING_DIRECT_OUTLET_H_
#define BFIO_CHAINS_TESTS_TESTING_DIRECT_OUTLET_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "chains/pipeline/neighbours.h"

namespace bfio::testing {

class DirectOutlet final : public worker::Outlet {
 public:
  explicit DirectOutlet(std::shared_ptr<worker::Inlet> next) : next_(std::move(next)) {}
  absl::Status Send(worker::MicroBatch batch) override { return next_->Take(std::move(batch)); }

 private:
  const std::shared_ptr<worker::Inlet> next_;
};

}  // namespace bfio::testing

#endif  // BFIO_CHAINS_TESTS_TESTING_DIRECT_OUTLET_H_
