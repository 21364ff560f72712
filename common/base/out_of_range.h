// The error for a value outside its limits. Pure; any thread.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace bfio {

// INVALID_ARGUMENT: "FIELD is VALUE; must be LIMIT".
template <typename Value, typename Limit>
absl::Status OutOfRange(absl::string_view field, const Value& value, const Limit& limit) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; must be ", limit));
}

}  // namespace bfio
