// Rejects requests that httplib would parse and this server does not support.
//
// Purpose: replies are sent whole and uncompressed, and no request can be smuggled in the body of another.
// Pure.
#ifndef BFIO_COMMON_HTTP_PLAIN_REQUESTS_H_
#define BFIO_COMMON_HTTP_PLAIN_REQUESTS_H_

#include <string>

#include "common/http/bounded_pool.h"

namespace bfio {

// httplib reads the bodies of these methods only; another method's body would be parsed as the next request.
inline bool HasUnreadBody(const httplib::Request& request) {
  if (request.method == "POST" || request.method == "PUT" || request.method == "PATCH" ||
      request.method == "DELETE" || request.method == "PRI") {
    return false;
  }
  const std::string length = request.get_header_value("Content-Length");
  return request.has_header("Transfer-Encoding") || request.get_header_value_count("Content-Length") > 1 ||
         length.find_first_not_of('0') != std::string::npos;
}

// Debian's httplib would compress any reply that the client allows, with Brotli's slowest setting: tens of
// milliseconds for a page. It would also send a range as often as a client lists it. httplib reads both
// headers after this call, from the same request, which is not a const object. httplib 0.11.4 has no setting
// for either, and passes a const reference to the handlers that call this.
inline void SendWholeAndPlain(const httplib::Request& request) {
  auto& own = const_cast<httplib::Request&>(request);
  own.headers.erase("Accept-Encoding");
  own.ranges.clear();
}

}  // namespace bfio

#endif  // BFIO_COMMON_HTTP_PLAIN_REQUESTS_H_
