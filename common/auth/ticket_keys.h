// Tickets: short proofs that this service has said something before, kept by whom it was said to.
//
// Purpose: what a router has decided about a client outlives the router without being stored. A ticket is a
// version, an expiry and an HMAC-SHA256 over both and the facts that it is about; the facts themselves are
// not in it, so whoever shows a ticket says them again. A keys file has one key per line, of 32 to 512
// printable characters ('#' begins a comment); the first signs and all verify, so that a key can be replaced.
// No text of this room contains a key. Immutable after Open, so any thread may ask.
#ifndef BFIO_COMMON_AUTH_TICKET_KEYS_H_
#define BFIO_COMMON_AUTH_TICKET_KEYS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace bfio {

class TicketKeys {
 public:
  static constexpr size_t kTicketBytes = 1 + 8 + 32;
  static constexpr size_t kMaxKeys = 8;
  static constexpr size_t kMinKeyBytes = 32;
  static constexpr size_t kMaxKeyBytes = 512;

  // NOT_FOUND, or INVALID_ARGUMENT for a file that is no keys file.
  static absl::StatusOr<TicketKeys> Open(const std::string& path);
  static absl::StatusOr<TicketKeys> Parse(absl::string_view text, absl::string_view source);

  // `expires` is by the wall clock, and kept to the second.
  std::string Issue(absl::string_view facts, absl::Time expires) const;
  // Whether one of these keys has signed it for these facts and it has not expired. Takes as long for a wrong
  // ticket as for a right one.
  bool Valid(absl::string_view ticket, absl::string_view facts, absl::Time now) const;

 private:
  std::vector<std::string> keys_;
};

// 128 bits of the operating system's generator, as 32 hexadecimal digits.
std::string RandomId();

}  // namespace bfio

#endif  // BFIO_COMMON_AUTH_TICKET_KEYS_H_
