// Reads a small file that may be replaced by anything while the program runs. Threads: pure function.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace bfio {

// The first `most_bytes` and one more, so that a larger file can be told. A pipe may keep the caller waiting
// for a second at most. NOT_FOUND: it cannot be read.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t most_bytes);

}  // namespace bfio
