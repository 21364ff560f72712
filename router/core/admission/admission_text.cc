#include "router/core/admission/admission_text.h"

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace bfio::core {

absl::StatusOr<AdmissionSetting> ParseAdmission(absl::string_view text) {
  AdmissionSetting setting;
  bool kv = false, wait = false;
  for (const absl::string_view rule : absl::StrSplit(text, '+')) {
    const bool waits = absl::StartsWith(rule, "wait") || absl::StartsWith(rule, "nested_wait");
    if (waits ? wait : kv) {
      return absl::InvalidArgumentError(
          absl::StrCat("admission '", text, "' has two rules for ", waits ? "batches" : "memory"));
    }
    (waits ? wait : kv) = true;
    if (waits) {
      BFIO_ASSIGN_OR_RETURN(setting.wait, ParseWaitAdmission(rule));
    } else {
      BFIO_ASSIGN_OR_RETURN(setting.kv, ParseKvAdmission(rule));
    }
  }
  return setting;
}

}  // namespace bfio::core
