#include "common/http/socket_poll.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "common/base/clock.h"

namespace bfio {
namespace {

constexpr absl::Duration kGoOnPeriod = absl::Milliseconds(200);

}  // namespace

short PollSocket(int socket, short events, absl::Duration patience) {
  pollfd entry = {.fd = socket, .events = events, .revents = 0};
  const int64_t ms = std::clamp<int64_t>(
      absl::ToInt64Milliseconds(absl::Ceil(patience, absl::Milliseconds(1))), 0, 24 * 3600 * 1000);
  const absl::Time until = MonotonicNow() + absl::Milliseconds(ms);
  for (;;) {
    const absl::Duration left = std::max(until - MonotonicNow(), absl::ZeroDuration());
    const int ready =
        poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1)))));
    if (ready < 0 && errno == EINTR) continue;
    return ready > 0 ? entry.revents : short{0};
  }
}

short AwaitSocket(int socket, short events, absl::Time by, absl::FunctionRef<bool()> go_on) {
  for (;;) {
    const absl::Duration left = by - MonotonicNow();
    const short come = PollSocket(socket, events, std::min(left, kGoOnPeriod));
    if (come != 0 || left <= kGoOnPeriod || !go_on()) return come;
  }
}

}  // namespace bfio
