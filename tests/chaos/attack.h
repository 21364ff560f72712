// Faults that must not affect the group while they last (IsHarmless).
//
// Purpose: one small class each, behind one interface; faults that do affect the group (signals, links,
// disks) are in ChaosGroup. Threads: one; attacks that need more have their own.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bfio/v1/admin.pb.h"
#include "tests/chaos/schedule.h"

namespace bfio::chaos {

class ChaosGroup;

class Attack {
 public:
  // Ends the attack.
  virtual ~Attack() = default;
  // Describes a forbidden effect of the attack; empty: none so far.
  virtual std::string Check(const v1::ClusterState& /*state*/) { return ""; }
};

// Begins the attack. Null: its target is not in a suitable state, or the kind is not an attack. `group`
// outlives it.
std::unique_ptr<Attack> MakeAttack(const Fault& fault, ChaosGroup& group);

// Connections to the workers' barriers by an attacker with the workers' addresses, the epoch and the group's
// size, but without the secret: it sends nothing or invalid bytes, and tries to join as rank 1.
class BarrierIntruder final : public Attack {
 public:
  struct Options {
    // HOST:PORT, IPv4 addresses.
    std::vector<std::string> barriers;
    // The address on which it listens, as a rank does.
    std::string host = "127.0.0.1";
    int world_size = 2;
    // It tries this epoch and the following ones in turn.
    uint64_t epoch = 1;
  };
  explicit BarrierIntruder(Options options);
  ~BarrierIntruder() override;

  std::string Check(const v1::ClusterState&) override {
    return joined_ == 0 ? "" : "an intruder is a rank of the barrier";
  }
  // Barriers that accepted it as a rank; number of connections opened.
  int joined() const { return joined_; }
  int connections() const { return connections_; }

 private:
  void Run();
  void Connect(const std::string& barrier);
  void TryToJoin(const std::string& barrier, uint64_t epoch);

  const Options options_;
  std::atomic<bool> stop_{false};
  std::atomic<int> joined_{0}, connections_{0};
  // Open connections, the oldest first; used only by its thread.
  std::deque<int> open_;
  std::thread thread_;
};

}  // namespace bfio::chaos
