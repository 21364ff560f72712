// The barrier's wire format: messages of fixed sizes, little-endian, decoded without allocation. Pure
// functions.
//
// Forming a group. The connecting side begins, and both ends prove knowledge of the epoch's secret before
// any other message (join_proof.h):
//   kOpen       joiner -> acceptor   a nonce (Opening, 40 bytes)
//   kChallenge  acceptor -> joiner   a nonce and the acceptor's proof (Challenge, 72 bytes)
// then Handshakes, 288 bytes, each followed by its sender's proof, 32 bytes:
//   kJoin     any rank -> rank 0     its rank and its address
//   kWelcome  rank 0 -> any rank     the group is complete; the parent's address (empty: it is rank 0)
//   kAttach   rank -> its parent     when the parent is not rank 0
//   kReject   either acceptor        refused; `epoch` is the acceptor's own
// Every step (Frame, 80 bytes):
//   kReduce   child -> parent        the combined contributions of the child's subtree
//   kResult   parent -> child        the combined contributions of the whole group
//   kError    to all neighbours      this rank's barrier has failed; they pass it on
// Decoding validates magic, version and type; the caller checks epoch, rank and step.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/address.h"
#include "worker/barrier/barrier.h"

namespace bfio::worker {

enum class WireType : uint16_t {
  kJoin = 1,
  kWelcome = 2,
  kAttach = 3,
  kReject = 4,
  kReduce = 5,
  kResult = 6,
  kError = 7,
  kOpen = 8,
  kChallenge = 9,
};

// Drawn separately for each connection by each end.
using Nonce = std::array<uint8_t, 32>;
// HMAC-SHA256.
using Proof = std::array<uint8_t, 32>;

struct Opening {
  Nonce nonce{};
};

struct Challenge {
  Nonce nonce{};
  Proof proof{};
};

struct Handshake {
  WireType type = WireType::kJoin;
  uint64_t epoch = 0;
  int32_t rank = 0;
  int32_t world_size = 0;
  // The host has at most kMaxHostBytes; empty host: no address.
  Address address;
};

struct Frame {
  WireType type = WireType::kReduce;
  uint64_t epoch = 0;
  // The sender; in kError the rank where the failure began.
  int32_t rank = 0;
  // Only for kError.
  absl::StatusCode code = absl::StatusCode::kOk;
  int64_t step = 0;
  GroupView view;
};

inline constexpr size_t kOpeningBytes = 40;
inline constexpr size_t kChallengeBytes = 72;
inline constexpr size_t kHandshakeBytes = 288;
inline constexpr size_t kFrameBytes = 80;

std::array<uint8_t, kOpeningBytes> Encode(const Opening& opening);
std::array<uint8_t, kChallengeBytes> Encode(const Challenge& challenge);
std::array<uint8_t, kHandshakeBytes> Encode(const Handshake& handshake);
std::array<uint8_t, kFrameBytes> Encode(const Frame& frame);

// Absent when the bytes are not such a message.
std::optional<Opening> DecodeOpening(absl::Span<const uint8_t> bytes);
std::optional<Challenge> DecodeChallenge(absl::Span<const uint8_t> bytes);
std::optional<Handshake> DecodeHandshake(absl::Span<const uint8_t> bytes);
std::optional<Frame> DecodeFrame(absl::Span<const uint8_t> bytes);

}  // namespace bfio::worker
