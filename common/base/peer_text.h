// Text from the network in log lines, statuses and metrics. A peer's string may be as long as its message, 16
// MiB on the worker link. A string from a client, a worker or another server is truncated here before it is
// put into a line. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace bfio {

inline constexpr size_t kPeerTextBytes = 256;

// The first `most` bytes of the text and its length; does not cut a UTF-8 character.
std::string PeerText(absl::string_view text, size_t most = kPeerTextBytes);

}  // namespace bfio
