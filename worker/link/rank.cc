#include "worker/link/rank.h"

#include <random>
#include <utility>

namespace bfio::worker {

uint64_t NewInstance() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

Rank::Rank(StepLoopOptions loop, RouterLinkOptions link, std::unique_ptr<Engine> engine,
           std::unique_ptr<BarrierEndpoint> endpoint, std::shared_ptr<grpc::Channel> channel,
           std::unique_ptr<EnergyMonitor> energy)
    : energy_(std::move(energy)),
      link_(std::move(link), std::move(channel)),
      loop_(std::move(loop), std::move(engine), std::move(endpoint), link_) {}

Rank::~Rank() {
  End("stopped");
  if (link_thread_.joinable()) link_thread_.join();
}

void Rank::Start(std::function<void(const absl::Status&)> on_end) {
  link_thread_ = std::thread([this, on_end = std::move(on_end)] {
    // The loop's end ends the link and the link's end the loop, whichever comes first.
    absl::Status loop_status;
    std::thread loop_thread([&] {
      loop_status = loop_.Run();
      link_.Stop();
    });
    absl::Status link_status = link_.Run(loop_.inbox());
    loop_thread.join();
    on_end(loop_status.ok() ? link_status : loop_status);
  });
}

}  // namespace bfio::worker
