// Checks whether a port may be opened with its settings. Prevents that a port that other machines can reach
// is unencrypted or unauthenticated by accident. Pure functions.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/address.h"

namespace bfio {

// 127.0.0.0/8, ::1 and localhost.
bool IsLoopback(const Address& address);
// True if all addresses are.
bool IsLoopback(const Target& target);

// Whether a port that listens at `listening` is also reachable at the host of `other`, judged by the
// addresses alone.
bool AnswersAt(const Address& listening, const Address& other);

struct PortSetup {
  // Flag names without dashes, such as "listen" and "client_tls"; `ask` are the flags for authentication.
  absl::string_view listen_flag;
  absl::string_view tls_flag;
  absl::string_view ask_flags;
  bool encrypted = false;
  bool asks_who_calls = false;
};

// INVALID_ARGUMENT, naming the flags to set, when other machines can reach the address and the port is not
// encrypted or does not authenticate callers.
absl::Status CheckExposure(const Address& address, const PortSetup& port);

}  // namespace bfio
