#include "common/auth/ticket_keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/auth/token_file.h"
#include "common/base/read_file.h"
#include "common/base/status_macros.h"

namespace bfio {
namespace {

constexpr char kVersion = 2;
// Version, expiry, and the size of the claim that follows.
constexpr size_t kHeadBytes = 1 + 8 + 1;
constexpr size_t kMacBytes = 32;
static_assert(TicketKeys::kTicketBytes == kHeadBytes + kMacBytes && TicketKeys::kMaxClaimBytes < 256);
constexpr size_t kMaxFileBytes = 16384;

using Mac = std::array<unsigned char, kMacBytes>;

// `head` is the ticket without its MAC.
Mac MacOf(const std::string& key, absl::string_view head, absl::string_view facts) {
  // The label separates these MACs from others made with the same key.
  const std::string signed_text = absl::StrCat("bfio ticket ", head, facts);
  Mac mac;
  unsigned int size = mac.size();
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(signed_text.data()), signed_text.size(), mac.data(), &size);
  return mac;
}

std::string HeadOf(int64_t expires_s, absl::string_view claim) {
  std::string head(1, kVersion);
  for (int shift = 56; shift >= 0; shift -= 8)
    head.push_back(static_cast<char>(static_cast<uint64_t>(expires_s) >> shift));
  head.push_back(static_cast<char>(claim.size()));
  return head.append(claim.data(), claim.size());
}

int64_t ExpiryOf(absl::string_view head) {
  uint64_t seconds = 0;
  for (size_t i = 1; i < 1 + 8; ++i) seconds = (seconds << 8) | static_cast<unsigned char>(head[i]);
  return static_cast<int64_t>(seconds);
}

}  // namespace

absl::StatusOr<TicketKeys> TicketKeys::Open(const std::string& path) {
  BFIO_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxFileBytes));
  absl::StatusOr<TicketKeys> keys = Parse(text, path);
  if (keys.ok()) WarnIfWorldReadable(path);
  return keys;
}

absl::StatusOr<TicketKeys> TicketKeys::Parse(absl::string_view text, absl::string_view source) {
  const auto wrong = [&](auto... what) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": ", what...));
  };
  if (text.size() > kMaxFileBytes) return wrong("larger than ", kMaxFileBytes, " bytes");
  TicketKeys keys;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const bool printable = std::all_of(
        line.begin(), line.end(), [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
    if (!printable || line.size() < kMinKeyBytes || line.size() > kMaxKeyBytes)
      return wrong("a key must be a line of ", kMinKeyBytes, " to ", kMaxKeyBytes, " printable characters");
    if (keys.keys_.size() == kMaxKeys) return wrong("more than ", kMaxKeys, " keys");
    keys.keys_.emplace_back(line);
  }
  if (keys.keys_.empty()) return wrong("contains no key");
  return keys;
}

std::string TicketKeys::Issue(absl::string_view facts, absl::Time expires, absl::string_view claim) const {
  std::string ticket = HeadOf(absl::ToUnixSeconds(expires), claim);
  const Mac mac = MacOf(keys_.front(), ticket, facts);
  ticket.append(reinterpret_cast<const char*>(mac.data()), mac.size());
  return ticket;
}

std::optional<std::string> TicketKeys::Claim(absl::string_view ticket, absl::string_view facts,
                                             absl::Time now) const {
  if (ticket.size() < kTicketBytes || ticket[0] != kVersion) return std::nullopt;
  const size_t claim_bytes = static_cast<unsigned char>(ticket[kHeadBytes - 1]);
  if (ticket.size() != kTicketBytes + claim_bytes) return std::nullopt;
  const absl::string_view head = ticket.substr(0, kHeadBytes + claim_bytes);
  bool valid = false;
  for (const std::string& key : keys_) {
    const Mac mac = MacOf(key, head, facts);
    valid |= CRYPTO_memcmp(mac.data(), ticket.data() + head.size(), mac.size()) == 0;
  }
  if (!valid || absl::ToUnixSeconds(now) >= ExpiryOf(head)) return std::nullopt;
  return std::string(head.substr(kHeadBytes));
}

std::string RandomId() {
  std::string bytes(16, '\0');
  // A request of this size is never partial; it fails only where the system has no random generator.
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) std::abort();
  return absl::BytesToHexString(bytes);
}

}  // namespace bfio
