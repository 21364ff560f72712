// The Host header of a request to a port that only this machine should reach.
//
// Purpose: rejects requests of web pages whose host name was made to resolve to this machine (DNS rebinding).
// Pure.
#ifndef BFIO_COMMON_HTTP_HOST_NAME_H_
#define BFIO_COMMON_HTTP_HOST_NAME_H_

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace bfio {

// True for "localhost" and IP addresses, with or without a port: an attacker cannot redirect these.
inline bool NamesThisMachine(absl::string_view host) {
  if (absl::StartsWith(host, "[")) return true;
  host = host.substr(0, host.find(':'));
  return host.empty() || host == "localhost" ||
         host.find_first_not_of("0123456789.") == absl::string_view::npos;
}

}  // namespace bfio

#endif  // BFIO_COMMON_HTTP_HOST_NAME_H_
