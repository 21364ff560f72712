// Looks up hosts. Blocks while the system's resolver does, unless the host is an address. Any thread.
#pragma once

#include <netdb.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace bfio {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// The host's addresses for TCP, at least one; an empty host is this machine. `flags`: those of getaddrinfo.
// UNAVAILABLE with the resolver's reason.
inline absl::StatusOr<AddressList> Resolve(const std::string& host, uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error =
      getaddrinfo(host.empty() ? nullptr : host.c_str(), absl::StrCat(port).c_str(), &hints, &list);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  return AddressList(list, &freeaddrinfo);
}

}  // namespace bfio
