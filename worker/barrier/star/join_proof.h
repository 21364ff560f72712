// Authentication of a barrier's connections: both ends prove knowledge of the epoch's secret.
//
// Purpose: any program can connect to a rank's port, and epoch, rank and size can be guessed. Rank 0 draws
// a secret with each offer; the communicator id carries it to the other ranks over the link to the router,
// which authenticates workers. It never crosses the barrier's own connections. On those, challenge and
// response: each end draws a nonce, and each message is followed by an HMAC-SHA256 under the secret over both
// nonces, the sender's role and the message. So nothing can be replayed on another connection, reflected, or
// changed, and the acceptor proves itself first: a joiner reveals neither epoch nor address to an impostor.
// What follows the forming, frames and activations, is not protected by this: an attacker on the path between
// ranks can change it, unless TLS begins where this ends (tls.h).
//
// Nonces come from the caller. Pure; any thread.
#ifndef BFIO_WORKER_BARRIER_STAR_JOIN_PROOF_H_
#define BFIO_WORKER_BARRIER_STAR_JOIN_PROOF_H_

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

// What a communicator id says.
struct StarId {
  // Where rank 0 listens.
  Address root;
  Secret secret{};
};
// "HOST:PORT/SECRET", the secret in 64 hexadecimal digits.
std::string FormatStarId(const StarId& id);
// INVALID_ARGUMENT; its words have nothing of the secret.
absl::StatusOr<StarId> ParseStarId(absl::string_view text);

// A handshake and its sender's proof.
inline constexpr size_t kSealedBytes = kHandshakeBytes + sizeof(Proof);
using Sealed = std::array<uint8_t, kSealedBytes>;

// The end that connects.
class JoinerProof {
 public:
  JoinerProof(const Secret& secret, const Nonce& nonce) : secret_(secret), mine_(nonce) {}

  std::array<uint8_t, kOpeningBytes> Open() const { return Encode(Opening{mine_}); }
  // The reply; nothing when the acceptor does not prove knowledge of the secret.
  std::optional<Sealed> OnChallenge(absl::Span<const uint8_t> bytes, const Handshake& introduction);
  // The acceptor's answer; nothing when it is not the acceptor's, or none. REQUIRES: OnChallenge gave
  // something.
  std::optional<Handshake> OnAnswer(absl::Span<const uint8_t> bytes) const;

 private:
  Secret secret_;
  Nonce mine_;
  Nonce acceptors_{};
};

// The end that accepts.
class AcceptorProof {
 public:
  AcceptorProof(const Secret& secret, const Nonce& nonce) : secret_(secret), mine_(nonce) {}

  // The answer to an opening; nothing when the bytes are no opening.
  std::optional<std::array<uint8_t, kChallengeBytes>> OnOpening(absl::Span<const uint8_t> bytes);
  // Its introduction; nothing without a proof of the secret. REQUIRES: OnOpening gave something.
  std::optional<Handshake> OnIntroduction(absl::Span<const uint8_t> bytes) const;
  // To an authenticated joiner.
  Sealed Answer(const Handshake& answer) const;

 private:
  Secret secret_;
  Nonce mine_;
  Nonce joiners_{};
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_BARRIER_STAR_JOIN_PROOF_H_
