// TCP connections on which nothing is sent.
#ifndef BFIO_TESTS_CHAOS_RAW_CONNECTION_H_
#define BFIO_TESTS_CHAOS_RAW_CONNECTION_H_

#include <string>

namespace bfio::chaos {

// A non-blocking socket that connects, or is connected, to HOST:PORT, an IPv4 address; -1: refused.
int OpenConnection(const std::string& address);
// Whether the peer has closed or reset the connection.
bool HasEnded(int fd);

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_RAW_CONNECTION_H_
