#include "router/engine_link/engine_link.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "router/engine_link/engine_server.h"

namespace bfio::router {
namespace {

// Of ranks of engines; workers of the worker link are numbered from 1.
constexpr MemberId kFirstMember = MemberId{1} << 62;
// The thread looks at what waits at least this often.
constexpr absl::Duration kLongestWait = absl::Seconds(1);

}  // namespace

EngineLink::EngineLink(Options options, WorkerHandler* handler)
    : options_(std::move(options)), events_(std::make_shared<EventQueue>()) {
  thread_ = std::thread([this, handler] {
    pthread_setname_np(pthread_self(), "bfio-engines");
    MemberId next_member = kFirstMember;
    for (const EngineAddress& address : options_.engines) {
      BarrierCost* const barrier = address.barrier.empty() ? nullptr : &barriers_[address.barrier];
      servers_.push_back(
          std::make_unique<EngineServer>(address, &options_, handler, events_, &next_member, barrier));
    }
    Run();
  });
}

EngineLink::~EngineLink() {
  Stop();
}

void EngineLink::Stop() {
  events_->Close();
  if (thread_.joinable()) thread_.join();
}

void EngineLink::Run() {
  std::vector<EventQueue::Event> events;
  while (!events_->closed()) {
    absl::Time next = absl::InfiniteFuture();
    for (const auto& server : servers_) next = std::min(next, server->next_deadline());
    const absl::Duration wait = std::max(absl::ZeroDuration(), next - MonotonicNow());
    events_->WaitAndTake(std::min(wait, kLongestWait), events);
    for (EventQueue::Event& event : events) std::move(event)();
    const absl::Time now = MonotonicNow();
    for (const auto& server : servers_) server->OnTimer(now);
  }
  for (const auto& server : servers_) server->CancelAll();
}

}  // namespace bfio::router
