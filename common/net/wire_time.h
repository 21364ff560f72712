// Converts between absl's and protobuf's times. Pure functions; any thread.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"

namespace bfio {

// Nanosecond precision; seconds and nanos have the same sign.
inline void SetDuration(absl::Duration duration, google::protobuf::Duration* out) {
  const int64_t seconds = absl::IDivDuration(duration, absl::Seconds(1), &duration);
  out->set_seconds(seconds);
  out->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
}

// Accepts any value, malformed ones included.
inline absl::Duration DurationOf(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

// REQUIRES: time is between 1970 and 2262.
inline void SetTimestamp(absl::Time time, google::protobuf::Timestamp* out) {
  const int64_t ns = absl::ToUnixNanos(time);
  out->set_seconds(ns / 1000000000);
  out->set_nanos(static_cast<int32_t>(ns % 1000000000));
}

}  // namespace bfio
