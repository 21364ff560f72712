#include "tools/client/metadata.h"

#include <grpc/grpc.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace bfio::client {
namespace {

// A slice that refers to `text` without copying it.
grpc_slice View(const std::string& text) {
  return grpc_slice_from_static_buffer(text.data(), text.size());
}

}  // namespace

Metadata BearerToken(const std::string& token) {
  if (token.empty()) return {};
  return {{"authorization", absl::StrCat("Bearer ", token)}};
}

absl::Status CheckMetadata(const Metadata& metadata) {
  for (const auto& [name, value] : metadata) {
    if (grpc_header_key_is_legal(View(name)) == 0) {
      return absl::InvalidArgumentError(absl::StrCat("invalid header name: ", absl::CHexEscape(name)));
    }
    // The message does not contain the value, which may be a secret.
    if (grpc_is_binary_header(View(name)) == 0 && grpc_header_nonbin_value_is_legal(View(value)) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": the value has characters that a header value must not have"));
    }
  }
  return absl::OkStatus();
}

}  // namespace bfio::client
