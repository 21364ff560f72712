// Text that came over the network, as it goes into log lines, statuses and metrics.
//
// Purpose: a peer's string is as long as its message may be, 16 MiB on the worker link. Wherever a string
// that a client, a worker or another server has written is put into a line for people, it is cut here first.
// Pure; any thread.
#ifndef BFIO_COMMON_BASE_PEER_TEXT_H_
#define BFIO_COMMON_BASE_PEER_TEXT_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace bfio {

inline constexpr size_t kPeerTextBytes = 256;

// The first kPeerTextBytes of it and how many there were; no half of a UTF-8 character at the cut.
std::string PeerText(absl::string_view text);

}  // namespace bfio

#endif  // BFIO_COMMON_BASE_PEER_TEXT_H_
