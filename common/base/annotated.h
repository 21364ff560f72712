// Errors that say where they arose. Pure.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace bfio {

// An error with "WHERE: " before its message; what is OK stays as it is.
inline absl::Status Annotated(absl::string_view where, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
}
template <typename T>
absl::StatusOr<T> Annotated(absl::string_view where, absl::StatusOr<T> result) {
  if (result.ok()) return result;
  return Annotated(where, result.status());
}

}  // namespace bfio
