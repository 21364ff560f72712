// Waits for a socket.
//
// Threads: any, no state.
#ifndef BFIO_COMMON_HTTP_SOCKET_POLL_H_
#define BFIO_COMMON_HTTP_SOCKET_POLL_H_

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

namespace bfio {

// The events (poll.h) that occurred within `patience`; 0: none.
short PollSocket(int socket, short events, absl::Duration patience);

// The same until `by` (of MonotonicNow). `go_on` is called several times a second, and false ends the wait.
// Checks the socket at least once.
short AwaitSocket(int socket, short events, absl::Time by, absl::FunctionRef<bool()> go_on);

}  // namespace bfio

#endif  // BFIO_COMMON_HTTP_SOCKET_POLL_H_
