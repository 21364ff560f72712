// The Host header of a request to a port that only this machine should reach.
//
// Purpose: a web page whose name was made to point here (DNS rebinding) is kept out. Pure.
#ifndef BFIO_COMMON_HTTP_HOST_NAME_H_
#define BFIO_COMMON_HTTP_HOST_NAME_H_

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace bfio {

// "localhost" and numbers, with or without a port: names that an attacker cannot make point elsewhere.
inline bool NamesThisMachine(absl::string_view host) {
  if (absl::StartsWith(host, "[")) return true;
  host = host.substr(0, host.find(':'));
  return host.empty() || host == "localhost" ||
         host.find_first_not_of("0123456789.") == absl::string_view::npos;
}

}  // namespace bfio

#endif  // BFIO_COMMON_HTTP_HOST_NAME_H_
