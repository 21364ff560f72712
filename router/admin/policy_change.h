// Converts bfio.v1.PolicySetting to a PolicyChange. Pure; any thread.
#ifndef BFIO_ROUTER_ADMIN_POLICY_CHANGE_H_
#define BFIO_ROUTER_ADMIN_POLICY_CHANGE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bfio/v1/admin.pb.h"
#include "router/admin/operator_handler.h"

namespace bfio::router {

// INVALID_ARGUMENT for a horizon out of range; the handler checks names.
inline absl::StatusOr<PolicyChange> ToPolicyChange(const v1::PolicySetting& setting) {
  PolicyChange change;
  change.name = setting.name();
  if (setting.has_horizon()) {
    if (setting.horizon() > 500) {
      return absl::InvalidArgumentError(
          absl::StrCat("policy.horizon is ", setting.horizon(), "; must be within 0..500"));
    }
    change.horizon = static_cast<int32_t>(setting.horizon());
  }
  change.objective = setting.objective();
  return change;
}

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ADMIN_POLICY_CHANGE_H_
