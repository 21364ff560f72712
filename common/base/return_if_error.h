// BFIO_RETURN_IF_ERROR(expression): returns the expression's absl::Status from the calling function unless it
// is OK.
#ifndef BFIO_COMMON_BASE_RETURN_IF_ERROR_H_
#define BFIO_COMMON_BASE_RETURN_IF_ERROR_H_

#include "absl/status/status.h"

#define BFIO_RETURN_IF_ERROR(expression)                                                \
  do {                                                                                  \
    if (absl::Status bfio_status = (expression); !bfio_status.ok()) return bfio_status; \
  } while (false)

#endif  // BFIO_COMMON_BASE_RETURN_IF_ERROR_H_
