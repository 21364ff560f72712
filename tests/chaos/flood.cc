#include "tests/chaos/flood.h"

#include <unistd.h>

#include <utility>

#include "absl/time/clock.h"
#include "tests/chaos/raw_connection.h"

namespace bfio::chaos {
namespace {

// More connections than the router accepts without an authenticated call (ConnectionListener::Limits).
constexpr size_t kSilent = 160, kCalling = 16;
constexpr int kCallsPerConnection = 50;
constexpr uint32_t kMessageBytes = 1 << 20;
constexpr absl::Duration kCallPatience = absl::Milliseconds(10), kRoundPause = absl::Milliseconds(40);
constexpr const char* kMethods[] = {"/bfio.v1.Inference/Generate", "/bfio.v1.Inference/GetLoads",
                                    "/grpc.health.v1.Health/Watch", "/bfio.v1.WorkerLink/Attach"};

}  // namespace

Flood::Flood(std::string address) : address_(std::move(address)) {
  thread_ = std::thread([this] { Run(); });
}

Flood::~Flood() {
  stop_ = true;
  thread_.join();
  for (const int fd : silent_) close(fd);
}

void Flood::Run() {
  for (int round = 0; !stop_; ++round) {
    KeepConnections();
    BeginCalls(round);
    absl::SleepFor(kRoundPause);
  }
}

void Flood::KeepConnections() {
  std::erase_if(silent_, [](int fd) {
    if (!HasEnded(fd)) return false;
    close(fd);
    return true;
  });
  while (silent_.size() < kSilent) {
    const int fd = OpenConnection(address_);
    if (fd < 0) return;
    ++connections_;
    silent_.push_back(fd);
  }
}

void Flood::BeginCalls(int round) {
  auto calls = std::make_unique<testing::UnfinishedCalls>(address_);
  const char* const method = kMethods[static_cast<size_t>(round) % std::size(kMethods)];
  if (!calls->Send(method, kCallsPerConnection, kMessageBytes, kCallPatience)) return;
  ++connections_;
  calls_ += kCallsPerConnection;
  calling_.push_back(std::move(calls));
  if (calling_.size() > kCalling) calling_.pop_front();
}

}  // namespace bfio::chaos
