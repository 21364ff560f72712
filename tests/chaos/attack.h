// Faults that promise to harm nobody, as long as they last.
//
// Purpose: one small class each, behind one interface; what harms the group (signals, links, disks) is
// ChaosGroup's own. Threads: one; the attacks that need more have their own.
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
  // Ends it.
  virtual ~Attack() = default;
  // What it has achieved that it must not; empty: nothing so far.
  virtual std::string Check(const v1::ClusterState& /*state*/) { return ""; }
};

// Begins it. Null: its target is in no state for it, or the kind is none of these. `group` outlives it.
std::unique_ptr<Attack> MakeAttack(const Fault& fault, ChaosGroup& group);

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_ATTACK_H_
