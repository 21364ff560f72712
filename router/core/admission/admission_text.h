// Parses `--admission`: a memory rule, a batch rule, or both. One parser for router and simulator. The text
// is rules joined by "+": at most one of none, kv_feasible[:confidence=P],
// mc_sf[:most=K,error=E,confidence=P] and protection:alpha=A (kv_admission.h), at most one of wait and
// nested_wait (wait_admission.h). Threads: any, pure.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/core/admission/kv_admission.h"
#include "router/core/admission/wait_admission.h"

namespace bfio::core {

struct AdmissionSetting {
  KvAdmissionOptions kv;
  WaitAdmissionOptions wait;
};

// INVALID_ARGUMENT with the error in the message.
absl::StatusOr<AdmissionSetting> ParseAdmission(absl::string_view text);

}  // namespace bfio::core
