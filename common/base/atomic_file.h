// Writes files atomically. A reader, or a second run, never sees an incomplete report. Threads: any. Two
// writers of one path do not mix their texts; the last one wins.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace bfio {

// Writes to a temporary file in the same directory, syncs it and renames it to `path`. On an error the
// message names the path and the reason, `path` is unchanged, and the temporary file is removed. The
// directory must exist.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view text);

}  // namespace bfio
