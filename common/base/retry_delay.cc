#include "common/base/retry_delay.h"

#include <cstdint>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace bfio {
namespace {

// The payload's value is the delay in nanoseconds, as decimal digits.
constexpr absl::string_view kRetryDelay = "bfio/retry_delay_ns";

}  // namespace

void SetRetryDelay(absl::Status& status, absl::Duration delay) {
  status.SetPayload(kRetryDelay, absl::Cord(absl::StrCat(absl::ToInt64Nanoseconds(delay))));
}

std::optional<absl::Duration> GetRetryDelay(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kRetryDelay);
  int64_t ns = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &ns)) return std::nullopt;
  return absl::Nanoseconds(ns);
}

}  // namespace bfio
