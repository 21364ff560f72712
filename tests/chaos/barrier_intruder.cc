#include "tests/chaos/barrier_intruder.h"

#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/chaos/raw_connection.h"
#include "worker/barrier/star/star_endpoint.h"

namespace bfio::chaos {
namespace {

// For all barriers together: a rank accepts 256 unauthenticated connections, and the test itself needs some.
constexpr size_t kMostOpen = 400;
constexpr int kConnectionsPerRound = 4;
constexpr uint64_t kEpochsTried = 4;
constexpr absl::Duration kAttempt = absl::Milliseconds(100), kPause = absl::Milliseconds(50);

}  // namespace

BarrierIntruder::BarrierIntruder(Options options) : options_(std::move(options)) {
  thread_ = std::thread([this] { Run(); });
}

BarrierIntruder::~BarrierIntruder() {
  stop_ = true;
  thread_.join();
  for (const int fd : open_) close(fd);
}

void BarrierIntruder::Run() {
  for (uint64_t round = 0; !stop_; ++round) {
    for (const std::string& barrier : options_.barriers) Connect(barrier);
    if (!options_.barriers.empty()) {
      const size_t which = round / kEpochsTried % options_.barriers.size();
      TryToJoin(options_.barriers[which], options_.epoch + round % kEpochsTried);
    }
    absl::SleepFor(kPause);
  }
}

void BarrierIntruder::Connect(const std::string& barrier) {
  for (int i = 0; i < kConnectionsPerRound; ++i) {
    const int fd = OpenConnection(barrier);
    if (fd < 0) return;
    ++connections_;
    // Every other connection is silent.
    const std::string nonsense(64, 'x');
    if (i % 2 == 0) send(fd, nonsense.data(), nonsense.size(), MSG_NOSIGNAL);
    open_.push_back(fd);
    if (open_.size() <= kMostOpen) continue;
    close(open_.front());
    open_.pop_front();
  }
}

void BarrierIntruder::TryToJoin(const std::string& barrier, uint64_t epoch) {
  auto endpoint = worker::StarEndpoint::Create({.host = options_.host});
  if (!endpoint.ok()) return;
  const auto joined = (*endpoint)->Form(
      {epoch, 1, options_.world_size, absl::StrCat(barrier, "/", std::string(64, '0'))}, kAttempt, {});
  if (joined.ok()) ++joined_;
}

}  // namespace bfio::chaos
