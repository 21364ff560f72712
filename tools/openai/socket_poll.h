// Waiting for a socket.
//
// Threads: any, no state.
#ifndef BFIO_TOOLS_OPENAI_SOCKET_POLL_H_
#define BFIO_TOOLS_OPENAI_SOCKET_POLL_H_

#include "absl/time/time.h"

namespace bfio::openai {

// The events (poll.h) that have come within `patience`; 0: none.
short Poll(int socket, short events, absl::Duration patience);

}  // namespace bfio::openai

#endif  // BFIO_TOOLS_OPENAI_SOCKET_POLL_H_
