#include "worker/barrier/star/join_proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/barrier/star/socket.h"

namespace bfio::worker {
namespace {

// Sender and kind of a message. It is part of each proof, so that one end's message cannot be used as the
// other's.
enum class Role : uint8_t { kChallenge = 1, kIntroduction = 2, kAnswer = 3 };

struct Nonces {
  const Nonce& joiner;
  const Nonce& acceptor;
};

// Absent when OpenSSL fails.
std::optional<Proof> Prove(const Secret& secret, Role role, const Nonces& nonces,
                           absl::Span<const uint8_t> words) {
  constexpr absl::string_view kPurpose = "bfio star barrier 1";
  std::vector<uint8_t> said(kPurpose.begin(), kPurpose.end());
  said.push_back(static_cast<uint8_t>(role));
  said.insert(said.end(), nonces.joiner.begin(), nonces.joiner.end());
  said.insert(said.end(), nonces.acceptor.begin(), nonces.acceptor.end());
  said.insert(said.end(), words.begin(), words.end());
  Proof proof{};
  unsigned int size = 0;
  const auto* const made = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), said.data(),
                                said.size(), proof.data(), &size);
  if (made == nullptr || size != proof.size()) return std::nullopt;
  return proof;
}

bool Proves(absl::Span<const uint8_t> given, const Secret& secret, Role role, const Nonces& nonces,
            absl::Span<const uint8_t> words) {
  const std::optional<Proof> proof = Prove(secret, role, nonces, words);
  return proof.has_value() && given.size() == proof->size() &&
         CRYPTO_memcmp(given.data(), proof->data(), proof->size()) == 0;
}

Sealed Seal(const Secret& secret, Role role, const Nonces& nonces, const Handshake& handshake) {
  const auto words = Encode(handshake);
  // The peer refuses a message without a valid proof.
  const Proof proof = Prove(secret, role, nonces, words).value_or(Proof{});
  Sealed sealed;
  std::copy(words.begin(), words.end(), sealed.begin());
  std::copy(proof.begin(), proof.end(), sealed.begin() + kHandshakeBytes);
  return sealed;
}

std::optional<Handshake> Unseal(const Secret& secret, Role role, const Nonces& nonces,
                                absl::Span<const uint8_t> bytes) {
  if (bytes.size() != kSealedBytes) return std::nullopt;
  const auto words = bytes.first(kHandshakeBytes);
  if (!Proves(bytes.subspan(kHandshakeBytes), secret, role, nonces, words)) return std::nullopt;
  return DecodeHandshake(words);
}

}  // namespace

std::string FormatStarId(const StarId& id) {
  const absl::string_view secret(reinterpret_cast<const char*>(id.secret.data()), id.secret.size());
  return absl::StrCat(id.root.ToString(), "/", absl::BytesToHexString(secret));
}

absl::StatusOr<StarId> ParseStarId(absl::string_view text) {
  const size_t slash = text.rfind('/');
  if (slash == absl::string_view::npos) {
    return absl::InvalidArgumentError(
        "the communicator id has no secret; rank 0 must run the same worker version");
  }
  const absl::string_view digits = text.substr(slash + 1);
  if (digits.size() != 2 * sizeof(Secret) || !std::all_of(digits.begin(), digits.end(), [](char c) {
        return absl::ascii_isxdigit(static_cast<unsigned char>(c));
      })) {
    return absl::InvalidArgumentError("the communicator id's secret is not 64 hexadecimal digits");
  }
  StarId id;
  BFIO_ASSIGN_OR_RETURN(id.root, ParseAddress(text.substr(0, slash)));
  const std::string secret = absl::HexStringToBytes(digits);
  std::copy(secret.begin(), secret.end(), id.secret.begin());
  return id;
}

std::optional<Sealed> JoinerProof::OnChallenge(absl::Span<const uint8_t> bytes,
                                               const Handshake& introduction) {
  const auto challenge = DecodeChallenge(bytes);
  if (!challenge.has_value()) return std::nullopt;
  const Nonces nonces = {mine_, challenge->nonce};
  if (!Proves(challenge->proof, secret_, Role::kChallenge, nonces, {})) return std::nullopt;
  acceptors_ = challenge->nonce;
  return Seal(secret_, Role::kIntroduction, nonces, introduction);
}

std::optional<Handshake> JoinerProof::OnAnswer(absl::Span<const uint8_t> bytes) const {
  return Unseal(secret_, Role::kAnswer, {mine_, acceptors_}, bytes);
}

std::optional<std::array<uint8_t, kChallengeBytes>> AcceptorProof::OnOpening(
    absl::Span<const uint8_t> bytes) {
  const auto opening = DecodeOpening(bytes);
  if (!opening.has_value()) return std::nullopt;
  joiners_ = opening->nonce;
  const auto proof = Prove(secret_, Role::kChallenge, {joiners_, mine_}, {});
  if (!proof.has_value()) return std::nullopt;
  return Encode(Challenge{mine_, *proof});
}

std::optional<Handshake> AcceptorProof::OnIntroduction(absl::Span<const uint8_t> bytes) const {
  return Unseal(secret_, Role::kIntroduction, {joiners_, mine_}, bytes);
}

Sealed AcceptorProof::Answer(const Handshake& answer) const {
  return Seal(secret_, Role::kAnswer, {joiners_, mine_}, answer);
}

}  // namespace bfio::worker
