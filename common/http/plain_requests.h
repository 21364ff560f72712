// Rejects what httplib would parse and this server does not support.
//
// Purpose: answers are sent whole and uncompressed, and no request hides in the body of another. Pure.
#ifndef BFIO_COMMON_HTTP_PLAIN_REQUESTS_H_
#define BFIO_COMMON_HTTP_PLAIN_REQUESTS_H_

#include <string>

#include "common/http/bounded_pool.h"

namespace bfio {

// httplib reads the bodies of these methods only; any other's would be taken for the next request.
inline bool HasUnreadBody(const httplib::Request& request) {
  if (request.method == "POST" || request.method == "PUT" || request.method == "PATCH" ||
      request.method == "DELETE" || request.method == "PRI") {
    return false;
  }
  const std::string length = request.get_header_value("Content-Length");
  return request.has_header("Transfer-Encoding") || request.get_header_value_count("Content-Length") > 1 ||
         length.find_first_not_of('0') != std::string::npos;
}

// Debian's library would compress whatever a client lets it, with Brotli's slowest setting: tens of
// milliseconds for a page's figures. And it would send a range as often as a client names it. It looks at
// both after us, in a request of its own that is not const.
inline void SendWholeAndPlain(const httplib::Request& request) {
  auto& own = const_cast<httplib::Request&>(request);
  own.headers.erase("Accept-Encoding");
  own.ranges.clear();
}

}  // namespace bfio

#endif  // BFIO_COMMON_HTTP_PLAIN_REQUESTS_H_
