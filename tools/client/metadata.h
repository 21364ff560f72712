// Headers of a call.
//
// Purpose: gRPC ends the process at a header that no header may be, so they are looked at before. Pure.
#ifndef BFIO_TOOLS_CLIENT_METADATA_H_
#define BFIO_TOOLS_CLIENT_METADATA_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace bfio::client {

using Metadata = std::vector<std::pair<std::string, std::string>>;

// The header that carries a bearer token; none for an empty token.
Metadata BearerToken(const std::string& token);

// INVALID_ARGUMENT for a name or a value that HTTP/2 does not carry.
absl::Status CheckMetadata(const Metadata& metadata);

}  // namespace bfio::client

#endif  // BFIO_TOOLS_CLIENT_METADATA_H_
