// The callers of an API: the owner of a bearer token or certificate, its expiry, and what that caller may do.
//
// Purpose: parses a tokens file and finds the owner of a presented token. One entry per line, words separated
// by blanks; '#' begins a comment; the words after the second are in any order:
//     NAME  sha256:64-HEX-DIGITS  [role=read] [expires=2027-01-31T00:00:00Z]
//     NAME  token:TEXT            [role=operate] [expires=2027-01-31]
//     NAME  cert:NAME-IN-THE-CERTIFICATE  [role=gateway] [trust_kv_transfer]
// NAME is the tenant (client API) or the operator (admin API). It may have several tokens, so that a new one
// can be issued before the old one is removed. An entry without a role may operate. A date without a time
// means its first instant in UTC. Tokens are stored as SHA-256 digests, and the digest of a presented token
// is compared with all of them in constant time. No message of this module contains a token or a digest.
// Pure; immutable after Parse, so any thread may use it.
#pragma once

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

// What a caller may do. At the admin API a role includes those before it.
enum class Role {
  // At the client API: it carries the requests of many tenants, which it names. At the admin API: nothing.
  kGateway,
  // May read metrics and state.
  kRead,
  // May also change the policy and drain workers.
  kOperate,
};

class BearerTokens {
 public:
  static constexpr size_t kMaxFileBytes = 1 << 20;
  static constexpr size_t kMaxTokens = 4096;
  static constexpr size_t kMaxNameBytes = 128;
  // Shorter tokens could be guessed and are rejected; longer ones than kMaxTokenBytes are invalid.
  static constexpr size_t kMinTokenBytes = 16;
  static constexpr size_t kMaxTokenBytes = 512;

  enum class Verdict { kValid, kUnknown, kExpired };
  struct Owner {
    Verdict verdict = Verdict::kUnknown;
    // The owner, also of an expired token; empty for kUnknown.
    std::string name;
    Role role = Role::kRead;
    // May hand KV over between engines: a gateway that has prompts computed itself.
    bool trust_kv_transfer = false;
  };

  // INVALID_ARGUMENT "SOURCE:LINE: what is wrong" for the first line that is not an entry, for a repeated
  // token or certificate, and for a file without entries. No entry of such a file is used.
  static absl::StatusOr<BearerTokens> Parse(absl::string_view text, absl::string_view source);

  Owner Find(absl::string_view token, absl::Time now) const;
  // The owner of a certificate with these names, which TLS has verified.
  Owner FindCertificate(const std::vector<std::string>& names, absl::Time now) const;

  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    std::string name;
    // Digest of the token; absent for a certificate, whose name is stored instead.
    std::optional<Sha256Digest> digest;
    std::string certificate;
    Role role = Role::kOperate;
    bool trust_kv_transfer = false;
    absl::Time expires = absl::InfiniteFuture();
  };
  // INVALID_ARGUMENT, saying what is wrong with a line of these words.
  static absl::StatusOr<Entry> ParseEntry(const std::vector<absl::string_view>& words);
  static Owner OwnerOf(const Entry* entry, absl::Time now);

  std::vector<Entry> entries_;
};

// The token of an Authorization header "Bearer TOKEN" (RFC 6750; the scheme in any case); empty when the
// header has another form.
absl::string_view BearerToken(absl::string_view authorization);

}  // namespace bfio
