// Early returns of errors, in functions that return absl::Status or absl::StatusOr.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns the expression's absl::Status from the calling function unless it is OK.
#define BFIO_RETURN_IF_ERROR(expression)                                                \
  do {                                                                                  \
    if (absl::Status bfio_status = (expression); !bfio_status.ok()) return bfio_status; \
  } while (false)

// BFIO_ASSIGN_OR_RETURN(target, expression): moves the value of the expression's absl::StatusOr into
// `target`, a declaration or anything assignable, or returns its error from the calling function. It makes
// several statements, so it must not be the sole body of an `if` or a loop.
#define BFIO_ASSIGN_OR_RETURN(target, ...) \
  BFIO_ASSIGN_OR_RETURN_(BFIO_STATUS_OR_NAME_(bfio_status_or_, __LINE__), target, (__VA_ARGS__))

#define BFIO_ASSIGN_OR_RETURN_(status_or, target, expression) \
  auto status_or = expression;                                \
  if (!status_or.ok()) return std::move(status_or).status();  \
  target = *std::move(status_or)

#define BFIO_STATUS_OR_NAME_(prefix, line) BFIO_STATUS_OR_JOIN_(prefix, line)
#define BFIO_STATUS_OR_JOIN_(prefix, line) prefix##line
