// Writes every counted decision to a file for solvers that prove optimality.
//
// Purpose: a decorator that writes the integer program of each snapshot, the paper's J over the acting
// policy's horizon (tools/sim/run/lp_export.h), and then lets the acting policy decide. A decision without a
// free slot or with an empty pool has no program and no file. Ownership: owns the acting policy. Threads:
// one.
#ifndef BFIO_TOOLS_SIM_RUN_LP_DUMP_H_
#define BFIO_TOOLS_SIM_RUN_LP_DUMP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "router/core/model/free_capacity.h"
#include "router/core/policy/policy.h"
#include "router/core/solver/instance.h"
#include "tools/sim/run/options.h"

namespace bfio::sim {

class LpDumpPolicy final : public core::Policy {
 public:
  // Creates the folder options.dump_lp if it does not exist; see status() for errors.
  LpDumpPolicy(std::unique_ptr<core::Policy> acting, const SimOptions& options);

  absl::string_view name() const override { return acting_->name(); }
  int32_t horizon() const override { return acting_->horizon(); }
  absl::Span<const core::PlacementRule> placement_rules() const override {
    return acting_->placement_rules();
  }
  bool uses_first_come_waits() const override { return acting_->uses_first_come_waits(); }
  bool uses_prefixes() const override { return acting_->uses_prefixes(); }
  void Decide(const core::Snapshot& snapshot, core::Decision& decision) override;
  const core::ShadowSet* shadows() const override { return acting_->shadows(); }

  // The first error; nothing is written after it.
  const absl::Status& status() const { return status_; }
  int64_t written() const { return written_; }

 private:
  void Write(int64_t step);

  std::unique_ptr<core::Policy> acting_;
  std::string folder_;
  int64_t limit_;
  // The decisions of this many first steps are not written.
  int64_t warmup_;
  int64_t written_ = 0;
  absl::Status status_;
  core::FreeCapacity free_;
  core::Instance instance_;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_LP_DUMP_H_
