// A rank's membership in a group whose ranks compute their steps together (--mlp=tp).
//
// Purpose: the part of the step loop that concerns such steps, for tests and checks of engines without a step
// loop. Ownership: borrows the barrier. Threads: the rank's. Errors: the barrier's; INTERNAL when an engine
// fails by itself.
#ifndef BFIO_TESTS_TESTING_GROUP_MEMBER_H_
#define BFIO_TESTS_TESTING_GROUP_MEMBER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "worker/barrier/step_peers.h"
#include "worker/engine/engine.h"

namespace bfio::testing {

class GroupMember {
 public:
  // Its first step is the one after `steps`.
  GroupMember(const worker::GroupSpec& group, worker::Barrier& barrier, int64_t steps = 0)
      : group_(group), barrier_(barrier), step_(steps) {}

  // One step of all ranks; returns how many ranks reported that they are busy.
  absl::StatusOr<int64_t> Step(worker::Engine& engine, bool busy, worker::StepOutput& out) {
    // Has no effect on an engine that has entered already; here several engines may use the membership in
    // turn.
    const worker::StepPeers all(group_, barrier_, 0, kMostRows, kPatience);
    BFIO_RETURN_IF_ERROR(engine.EnterGroup(all));
    BFIO_ASSIGN_OR_RETURN(
        const auto agreed,
        barrier_.AllReduce(++step_, {.active = busy, .rows = engine.NextRows()}, kPatience));
    worker::StepPeers peers(group_, barrier_, step_, agreed.max_rows, kPatience);
    const absl::Status status = engine.StepTogether(peers, out);
    if (status != peers.status())
      return absl::InternalError(absl::StrCat("the engine's fault: ", status.ToString()));
    if (!status.ok()) return status;
    return agreed.sum_active;
  }

  // Steps until no rank has work; returns the tokens that `engine` generated.
  absl::StatusOr<std::map<worker::Handle, std::vector<uint32_t>>> Run(worker::Engine& engine) {
    std::map<worker::Handle, std::vector<uint32_t>> tokens;
    worker::StepOutput out;
    for (;;) {
      BFIO_ASSIGN_OR_RETURN(const auto busy, Step(engine, engine.active() > 0, out));
      if (busy == 0) return tokens;
      for (const auto& token : out.tokens) tokens[token.handle].push_back(token.id);
    }
  }

 private:
  // Timeout against hangs, not a performance bound.
  static constexpr absl::Duration kPatience = absl::Seconds(60);
  // More than the batch of any test.
  static constexpr int64_t kMostRows = 96;

  const worker::GroupSpec group_;
  worker::Barrier& barrier_;
  int64_t step_;
};

// A rank's engine as one that steps by itself, so that RunSchedule can drive it: the other ranks step when it
// does.
class MemberEngine final : public worker::Engine {
 public:
  MemberEngine(std::unique_ptr<worker::Engine> engine, GroupMember& member)
      : engine_(std::move(engine)), member_(member) {}

  absl::string_view name() const override { return engine_->name(); }
  const worker::EngineLimits& limits() const override { return engine_->limits(); }
  absl::Status Admit(const worker::SequenceRequest& request) override { return engine_->Admit(request); }
  bool Cancel(worker::Handle handle) override { return engine_->Cancel(handle); }
  absl::Status Step(worker::StepOutput& out) override { return member_.Step(*engine_, true, out).status(); }
  int32_t active() const override { return engine_->active(); }
  int32_t free_slots() const override { return engine_->free_slots(); }
  int64_t free_kv_tokens() const override { return engine_->free_kv_tokens(); }
  std::vector<worker::ResidentSequence> resident() const override { return engine_->resident(); }

 private:
  const std::unique_ptr<worker::Engine> engine_;
  GroupMember& member_;
};

}  // namespace bfio::testing

#endif  // BFIO_TESTS_TESTING_GROUP_MEMBER_H_
