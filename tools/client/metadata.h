// The headers of a call.
//
// Purpose: gRPC aborts the process on an invalid header, so headers are checked before. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace bfio::client {

using Metadata = std::vector<std::pair<std::string, std::string>>;

// The header that carries a bearer token; empty for an empty token.
Metadata BearerToken(const std::string& token);

// INVALID_ARGUMENT for a name or a value that HTTP/2 cannot carry.
absl::Status CheckMetadata(const Metadata& metadata);

}  // namespace bfio::client
