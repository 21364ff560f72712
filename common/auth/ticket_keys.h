// Tickets: short signed proofs of an earlier decision of this service, kept by the client. A router's
// decision about a client survives the router without being stored. A ticket is a version, an expiry, a
// claim, and an HMAC-SHA256 over them and the facts that the ticket is about. The facts are not in the
// ticket, so a client that presents it repeats them; the claim is read from the ticket. A keys file has one
// key per line, of 32 to 512 printable characters ('#' begins a comment). The first key signs and all verify,
// so that a key can be replaced. No message of this module contains a key. Immutable after Open; any thread
// may use it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace bfio {

class TicketKeys {
 public:
  // Size of a ticket without a claim.
  static constexpr size_t kTicketBytes = 1 + 8 + 1 + 32;
  static constexpr size_t kMaxClaimBytes = 64;
  static constexpr size_t kMaxKeys = 8;
  static constexpr size_t kMinKeyBytes = 32;
  static constexpr size_t kMaxKeyBytes = 512;

  // NOT_FOUND: no such file; INVALID_ARGUMENT: not a keys file.
  static absl::StatusOr<TicketKeys> Open(const std::string& path);
  static absl::StatusOr<TicketKeys> Parse(absl::string_view text, absl::string_view source);

  // `expires` is by the wall clock and stored in whole seconds. REQUIRES: `claim` has at most kMaxClaimBytes.
  std::string Issue(absl::string_view facts, absl::Time expires, absl::string_view claim = "") const;
  // The claim, if one of these keys has signed the ticket for these facts and it has not expired. Takes the
  // same time for a wrong ticket as for a right one.
  std::optional<std::string> Claim(absl::string_view ticket, absl::string_view facts, absl::Time now) const;

 private:
  std::vector<std::string> keys_;
};

// 128 bits from the operating system's random generator, as 32 hexadecimal digits.
std::string RandomId();

}  // namespace bfio
