// Faults that must not affect the group while they last (IsHarmless).
//
// Purpose: one small class each, behind one interface; faults that do affect the group (signals, links,
// disks) are in ChaosGroup. Threads: one; attacks that need more have their own.
#ifndef BFIO_TESTS_CHAOS_ATTACK_H_
#define BFIO_TESTS_CHAOS_ATTACK_H_

#include <memory>
#include <string>

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

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_ATTACK_H_
