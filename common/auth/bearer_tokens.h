// The callers of an API: whose a bearer token or a certificate is, until when, and what that caller may do.
//
// Purpose: parses a tokens file and says whose a presented token is. One entry per line, words separated by
// blanks, '#' begins a comment; the words after the second come in any order:
//     NAME  sha256:64-HEX-DIGITS  [role=read] [expires=2027-01-31T00:00:00Z]
//     NAME  token:TEXT            [role=operate] [expires=2027-01-31]
//     NAME  cert:NAME-IN-THE-CERTIFICATE  [role=read]
// NAME is the tenant (client API) or the operator (admin API); it may have several tokens, so that a new one
// can be given out before the old one is taken away. An entry without a role may operate. A date alone is its
// first instant, in UTC. Tokens are kept as SHA-256 digests, and a presented one is compared, by its digest,
// with all of them in constant time. No text of this module contains a token or a digest. Pure; immutable
// after Parse, so any thread may ask.
#ifndef BFIO_COMMON_AUTH_BEARER_TOKENS_H_
#define BFIO_COMMON_AUTH_BEARER_TOKENS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace bfio {

using Sha256Digest = std::array<uint8_t, 32>;
Sha256Digest Sha256(absl::string_view bytes);

// What a caller of the admin API may do; a role includes those before it.
enum class Role {
  // Metrics and state.
  kRead,
  // Policy, drains.
  kOperate,
};

class BearerTokens {
 public:
  static constexpr size_t kMaxFileBytes = 1 << 20;
  static constexpr size_t kMaxTokens = 4096;
  static constexpr size_t kMaxNameBytes = 128;
  // Shorter ones can be guessed; longer ones are not valid.
  static constexpr size_t kMinTokenBytes = 16;
  static constexpr size_t kMaxTokenBytes = 512;

  enum class Verdict { kValid, kUnknown, kExpired };
  struct Owner {
    Verdict verdict = Verdict::kUnknown;
    // Whose it is or was; empty for kUnknown.
    absl::string_view name;
    Role role = Role::kRead;
  };

  // All or nothing: INVALID_ARGUMENT "SOURCE:LINE: what is wrong" for the first line that is not an entry,
  // for a token or certificate that is there twice, and for a file without any.
  static absl::StatusOr<BearerTokens> Parse(absl::string_view text, absl::string_view source);

  // `name` lives as long as this object.
  Owner Find(absl::string_view token, absl::Time now) const;
  // Whose a certificate with these names is, which TLS has checked.
  Owner FindCertificate(const std::vector<std::string>& names, absl::Time now) const;

  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    std::string name;
    // Of the token, or empty and the name in the certificate.
    std::optional<Sha256Digest> digest;
    std::string certificate;
    Role role = Role::kOperate;
    absl::Time expires = absl::InfiniteFuture();
  };
  // INVALID_ARGUMENT with what is wrong with a line of these words.
  static absl::StatusOr<Entry> ParseEntry(const std::vector<absl::string_view>& words);
  static Owner OwnerOf(const Entry* entry, absl::Time now);

  std::vector<Entry> entries_;
};

// The token of "Bearer TOKEN" (RFC 6750; the scheme in any case); empty when the header is none.
absl::string_view BearerToken(absl::string_view authorization);

}  // namespace bfio

#endif  // BFIO_COMMON_AUTH_BEARER_TOKENS_H_
