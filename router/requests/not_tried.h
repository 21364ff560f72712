// Marks the status of a request that a rank returns untried, without a refusal by any worker. A rank on trial
// (EngineRank::Options::on_trial) returns requests without having tried them. These do not count as refusals,
// whose number and time are bounded. The mark is a payload of the status, so every layer in between passes it
// on unchanged.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace bfio::router {

inline constexpr absl::string_view kNotTried = "bfio/not-tried";

// REQUIRES: !status.ok().
[[nodiscard]] inline absl::Status NotTried(absl::Status status) {
  status.SetPayload(kNotTried, absl::Cord());
  return status;
}

inline bool WasNotTried(const absl::Status& status) {
  return status.GetPayload(kNotTried).has_value();
}

}  // namespace bfio::router
