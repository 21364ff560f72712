// Authentication of a barrier's connections: both ends prove knowledge of the epoch's secret, which rank 0
// draws with each offer and the communicator id carries over the authenticated links to the router. It is
// never sent over the barrier's own connections: each end draws a nonce, and each message of the handshake is
// followed by an HMAC-SHA256 under the secret over both nonces, the sender's role and the message. The
// acceptor proves itself first. Messages after the handshake are not protected, unless TLS starts then
// (tls.h). The caller provides the nonces. Pure; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/barrier/star/wire.h"

namespace bfio::worker {

using Secret = std::array<uint8_t, 32>;

// The content of a communicator id.
struct StarId {
  // Address at which rank 0 listens.
  Address root;
  Secret secret{};
};
// "HOST:PORT/SECRET", with the secret as 64 hexadecimal digits.
std::string FormatStarId(const StarId& id);
// INVALID_ARGUMENT; the message contains nothing of the secret.
absl::StatusOr<StarId> ParseStarId(absl::string_view text);

// Size of a handshake with its sender's proof.
inline constexpr size_t kSealedBytes = kHandshakeBytes + sizeof(Proof);
using Sealed = std::array<uint8_t, kSealedBytes>;

// The connecting end.
class JoinerProof {
 public:
  JoinerProof(const Secret& secret, const Nonce& nonce) : secret_(secret), mine_(nonce) {}

  std::array<uint8_t, kOpeningBytes> Open() const { return Encode(Opening{mine_}); }
  // The introduction to send; absent when the acceptor does not prove knowledge of the secret.
  std::optional<Sealed> OnChallenge(absl::Span<const uint8_t> bytes, const Handshake& introduction);
  // The acceptor's answer; absent when its proof is invalid. REQUIRES: OnChallenge returned a reply.
  std::optional<Handshake> OnAnswer(absl::Span<const uint8_t> bytes) const;

 private:
  Secret secret_;
  Nonce mine_;
  Nonce acceptors_{};
};

// The accepting end.
class AcceptorProof {
 public:
  AcceptorProof(const Secret& secret, const Nonce& nonce) : secret_(secret), mine_(nonce) {}

  // The challenge to send; absent when the bytes are not an opening.
  std::optional<std::array<uint8_t, kChallengeBytes>> OnOpening(absl::Span<const uint8_t> bytes);
  // The joiner's introduction; absent without a proof of the secret. REQUIRES: OnOpening returned a
  // challenge.
  std::optional<Handshake> OnIntroduction(absl::Span<const uint8_t> bytes) const;
  // The answer to an authenticated joiner, with a proof.
  Sealed Answer(const Handshake& answer) const;

 private:
  Secret secret_;
  Nonce mine_;
  Nonce joiners_{};
};

}  // namespace bfio::worker
