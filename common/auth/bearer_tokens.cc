#include "common/auth/bearer_tokens.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"

namespace bfio {
namespace {

constexpr std::pair<absl::string_view, Role> kRoles[] = {
    {"role=gateway", Role::kGateway}, {"role=read", Role::kRead}, {"role=operate", Role::kOperate}};

bool IsTokenText(absl::string_view text) {
  const auto token68 = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("-._~+/=", c);
  };
  return text.size() >= BearerTokens::kMinTokenBytes && text.size() <= BearerTokens::kMaxTokenBytes &&
         std::all_of(text.begin(), text.end(), token68);
}

bool IsName(absl::string_view name) {
  return name.size() <= BearerTokens::kMaxNameBytes && std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isgraph(static_cast<unsigned char>(c));
         });
}

absl::StatusOr<Sha256Digest> ParseSecret(absl::string_view word) {
  if (absl::ConsumePrefix(&word, "token:")) {
    if (IsTokenText(word)) return Sha256(word);
    return absl::InvalidArgumentError("token: must be followed by 16 to 512 letters, digits or -._~+/=");
  }
  if (!absl::ConsumePrefix(&word, "sha256:")) {
    return absl::InvalidArgumentError("the second word must begin with sha256:, token: or cert:");
  }
  const bool hex = word.size() == 64 && std::all_of(word.begin(), word.end(), [](char c) {
                     return absl::ascii_isxdigit(static_cast<unsigned char>(c));
                   });
  if (!hex) return absl::InvalidArgumentError("sha256: must be followed by 64 hexadecimal digits");
  const std::string bytes = absl::HexStringToBytes(word);
  Sha256Digest digest;
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  return digest;
}

absl::StatusOr<absl::Time> ParseExpiry(absl::string_view word) {
  absl::Time time;
  std::string error;
  if (absl::ConsumePrefix(&word, "expires=") && (absl::ParseTime("%Y-%m-%d", word, &time, &error) ||
                                                 absl::ParseTime(absl::RFC3339_full, word, &time, &error))) {
    return time;
  }
  return absl::InvalidArgumentError(
      "after the second word only role=read, role=operate, role=gateway, trust_kv_transfer, "
      "expires=YYYY-MM-DD and expires=YYYY-MM-DDThh:mm:ssZ may follow");
}

}  // namespace

Sha256Digest Sha256(absl::string_view bytes) {
  Sha256Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  return digest;
}

absl::StatusOr<BearerTokens::Entry> BearerTokens::ParseEntry(const std::vector<absl::string_view>& words) {
  if (words.size() < 2 || words.size() > 5) {
    return absl::InvalidArgumentError(
        "must be NAME, then sha256:, token: or cert:, then optionally role=, trust_kv_transfer and expires=");
  }
  if (!IsName(words[0]))
    return absl::InvalidArgumentError("a name must have at most 128 printable ASCII characters");
  Entry entry{.name = std::string(words[0])};
  absl::string_view secret = words[1];
  if (absl::ConsumePrefix(&secret, "cert:")) {
    if (secret.empty())
      return absl::InvalidArgumentError("cert: must be followed by a name in the certificate");
    entry.certificate = std::string(secret);
  } else {
    BFIO_ASSIGN_OR_RETURN(entry.digest, ParseSecret(secret));
  }
  for (size_t i = 2; i < words.size(); ++i) {
    const auto role = std::find_if(std::begin(kRoles), std::end(kRoles),
                                   [&](const auto& one) { return one.first == words[i]; });
    if (role != std::end(kRoles)) {
      entry.role = role->second;
    } else if (words[i] == "trust_kv_transfer") {
      entry.trust_kv_transfer = true;
    } else {
      BFIO_ASSIGN_OR_RETURN(entry.expires, ParseExpiry(words[i]));
    }
  }
  return entry;
}

absl::StatusOr<BearerTokens> BearerTokens::Parse(absl::string_view text, absl::string_view source) {
  if (text.size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": larger than ", kMaxFileBytes, " bytes"));
  }
  BearerTokens tokens;
  absl::flat_hash_set<std::string> seen;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const auto bad = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat(source, ":", number, ": ", what));
    };
    line = line.substr(0, line.find('#'));
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    absl::StatusOr<Entry> entry = ParseEntry(words);
    if (!entry.ok()) return bad(entry.status().message());
    const std::string secret = entry->digest ? std::string(entry->digest->begin(), entry->digest->end())
                                             : absl::StrCat("cert:", entry->certificate);
    if (!seen.insert(secret).second) {
      return bad(entry->digest ? "this token is already in the file"
                               : "this certificate is already in the file");
    }
    if (tokens.entries_.size() == kMaxTokens) return bad(absl::StrCat("more than ", kMaxTokens, " tokens"));
    tokens.entries_.push_back(*std::move(entry));
  }
  // More likely a file that is being written than an intended change.
  if (tokens.entries_.empty()) return absl::InvalidArgumentError(absl::StrCat(source, ": contains no token"));
  return tokens;
}

BearerTokens::Owner BearerTokens::OwnerOf(const Entry* entry, absl::Time now) {
  if (entry == nullptr) return {};
  return {now < entry->expires ? Verdict::kValid : Verdict::kExpired, entry->name, entry->role,
          entry->trust_kv_transfer};
}

BearerTokens::Owner BearerTokens::Find(absl::string_view token, absl::Time now) const {
  if (token.empty() || token.size() > kMaxTokenBytes) return {};
  const Sha256Digest digest = Sha256(token);
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    if (!entry.digest) continue;
    // Compares all entries, so that the time does not reveal which entry matches or how closely.
    if (CRYPTO_memcmp(entry.digest->data(), digest.data(), digest.size()) == 0) found = &entry;
  }
  return OwnerOf(found, now);
}

BearerTokens::Owner BearerTokens::FindCertificate(const std::vector<std::string>& names,
                                                  absl::Time now) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return !entry.digest && std::find(names.begin(), names.end(), entry.certificate) != names.end();
  });
  return OwnerOf(found == entries_.end() ? nullptr : &*found, now);
}

absl::string_view BearerToken(absl::string_view authorization) {
  constexpr absl::string_view kScheme = "bearer ";
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return {};
  return absl::StripAsciiWhitespace(authorization.substr(kScheme.size()));
}

}  // namespace bfio
