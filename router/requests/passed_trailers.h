// The trailing metadata that an engine sends with an error, for the client of a request that passes. Gateways
// read details from it that the code does not have, such as whether a grammar could not be followed. It is
// stored as payloads of the status, which no other edge converts. Pure functions; any thread.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace bfio::router {

inline constexpr absl::string_view kTrailerPrefix = "bfio/trailer/";

// REQUIRES: !status.ok().
inline void AddTrailer(absl::string_view key, absl::string_view value, absl::Status& status) {
  status.SetPayload(absl::StrCat(kTrailerPrefix, key), absl::Cord(value));
}

inline void ForEachTrailer(const absl::Status& status,
                           absl::FunctionRef<void(const std::string& key, const std::string& value)> take) {
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& value) {
    if (absl::ConsumePrefix(&url, kTrailerPrefix)) take(std::string(url), std::string(value));
  });
}

}  // namespace bfio::router
