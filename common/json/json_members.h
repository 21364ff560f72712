// Changes members of a JSON object in its text: whatever else it says stays as it is, byte for byte, the
// order of its members included. Threads: pure function.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace bfio {

// The object with these members, given by name and value (JSON), instead of those of these names at its top.
// An empty value only removes. REQUIRES: ReadJsonObject has read the text.
std::string WithMembers(absl::string_view object,
                        const std::vector<std::pair<absl::string_view, std::string>>& members);

}  // namespace bfio
