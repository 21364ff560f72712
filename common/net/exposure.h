// Whether a port may be opened with its settings.
//
// Purpose: no port that other machines can reach is unencrypted or unauthenticated by oversight. Pure.
#ifndef BFIO_COMMON_NET_EXPOSURE_H_
#define BFIO_COMMON_NET_EXPOSURE_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/address.h"

namespace bfio {

// 127.0.0.0/8, ::1 and localhost.
bool IsLoopback(const Address& address);
// All of it.
bool IsLoopback(const Target& target);

// Whether a port that listens at `listening` answers at the host of `other`, as far as addresses show.
bool AnswersAt(const Address& listening, const Address& other);

struct PortSetup {
  // Without the dashes: "listen", "client_tls"; `ask` are the flags for authentication.
  absl::string_view listen_flag;
  absl::string_view tls_flag;
  absl::string_view ask_flags;
  bool encrypted = false;
  bool asks_who_calls = false;
};

// INVALID_ARGUMENT, with what to give, for an address that other machines can reach and a port that is not
// encrypted or authenticates no caller.
absl::Status CheckExposure(const Address& address, const PortSetup& port);

}  // namespace bfio

#endif  // BFIO_COMMON_NET_EXPOSURE_H_
