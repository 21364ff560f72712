#include "worker/barrier/star/wire.h"

#include <cstring>
#include <type_traits>
#include <utility>

namespace bfio::worker {
namespace {

constexpr uint32_t kMagic = 0x42694642;  // "BFiB" in memory
constexpr uint16_t kVersion = 4;

// Numbers in little-endian order, as `Wire` on the wire.
class Writer {
 public:
  static constexpr bool kReads = false;
  explicit Writer(absl::Span<uint8_t> out) : out_(out) {}

  template <typename Wire, typename T>
  void Number(T value) {
    const auto bits = static_cast<uint64_t>(static_cast<Wire>(value));
    for (size_t i = 0; i < sizeof(Wire); ++i) out_[at_++] = static_cast<uint8_t>(bits >> (8 * i));
  }
  template <typename Array>
  void Bytes(const Array& bytes) {
    std::memcpy(out_.data() + at_, bytes.data(), bytes.size());
    at_ += bytes.size();
  }
  // The rest of the message: its length, and as much as fits.
  void Text(absl::string_view text) {
    text = text.substr(0, kMaxHostBytes);
    Number<uint16_t>(text.size());
    Bytes(text);
  }

 private:
  absl::Span<uint8_t> out_;
  size_t at_ = 0;
};

class Reader {
 public:
  static constexpr bool kReads = true;
  explicit Reader(absl::Span<const uint8_t> in) : in_(in) {}

  template <typename Wire, typename T>
  void Number(T& value) {
    uint64_t bits = 0;
    for (size_t i = 0; i < sizeof(Wire); ++i) bits |= uint64_t{in_[at_++]} << (8 * i);
    value = static_cast<T>(static_cast<Wire>(bits));
  }
  template <typename Array>
  void Bytes(Array& bytes) {
    std::memcpy(bytes.data(), in_.data() + at_, bytes.size());
    at_ += bytes.size();
  }
  void Text(std::string& text) {
    size_t size = 0;
    Number<uint16_t>(size);
    ok_ = size <= kMaxHostBytes;
    text.resize(ok_ ? size : 0);
    Bytes(text);
  }
  // False: a text is longer than its message.
  bool ok() const { return ok_; }

 private:
  absl::Span<const uint8_t> in_;
  size_t at_ = 0;
  bool ok_ = true;
};

// The fields of each message, for both.
template <typename A, typename T>
using Of = std::conditional_t<A::kReads, T&, const T&>;

template <typename A>
void Fields(A& a, Of<A, Opening> opening) {
  a.Bytes(opening.nonce);
}

template <typename A>
void Fields(A& a, Of<A, Challenge> challenge) {
  a.Bytes(challenge.nonce);
  a.Bytes(challenge.proof);
}

template <typename A>
void Fields(A& a, Of<A, Handshake> handshake) {
  a.template Number<uint64_t>(handshake.epoch);
  a.template Number<int32_t>(handshake.rank);
  a.template Number<int32_t>(handshake.world_size);
  a.template Number<uint16_t>(handshake.address.port);
  a.Text(handshake.address.host);
}

template <typename A>
void Fields(A& a, Of<A, Frame> frame) {
  a.template Number<uint64_t>(frame.epoch);
  a.template Number<int32_t>(frame.rank);
  a.template Number<int32_t>(frame.code);
  a.template Number<int64_t>(frame.step);
  a.template Number<int64_t>(frame.view.max_load_tokens);
  a.template Number<int64_t>(frame.view.sum_load_tokens);
  a.template Number<int64_t>(frame.view.max_local_ns);
  a.template Number<int64_t>(frame.view.sum_local_ns);
  a.template Number<int64_t>(frame.view.sum_active);
  a.template Number<uint64_t>(frame.view.stop_flags);
}

template <size_t kBytes, typename M>
std::array<uint8_t, kBytes> Encoded(WireType type, const M& message) {
  std::array<uint8_t, kBytes> bytes{};
  Writer writer(absl::MakeSpan(bytes));
  writer.Number<uint32_t>(kMagic);
  writer.Number<uint16_t>(kVersion);
  writer.Number<uint16_t>(type);
  Fields(writer, message);
  return bytes;
}

template <size_t kBytes, typename M>
std::optional<M> Decoded(absl::Span<const uint8_t> bytes, WireType first, WireType last) {
  if (bytes.size() != kBytes) return std::nullopt;
  Reader reader(bytes);
  uint32_t magic = 0;
  uint16_t version = 0;
  WireType type{};
  reader.Number<uint32_t>(magic);
  reader.Number<uint16_t>(version);
  reader.Number<uint16_t>(type);
  if (magic != kMagic || version != kVersion || type < first || type > last) return std::nullopt;
  M message;
  if constexpr (requires { message.type; }) message.type = type;
  Fields(reader, message);
  return reader.ok() ? std::optional(std::move(message)) : std::nullopt;
}

}  // namespace

std::array<uint8_t, kOpeningBytes> Encode(const Opening& opening) {
  return Encoded<kOpeningBytes>(WireType::kOpen, opening);
}
std::array<uint8_t, kChallengeBytes> Encode(const Challenge& challenge) {
  return Encoded<kChallengeBytes>(WireType::kChallenge, challenge);
}
std::array<uint8_t, kHandshakeBytes> Encode(const Handshake& handshake) {
  return Encoded<kHandshakeBytes>(handshake.type, handshake);
}
std::array<uint8_t, kFrameBytes> Encode(const Frame& frame) {
  return Encoded<kFrameBytes>(frame.type, frame);
}
std::optional<Opening> DecodeOpening(absl::Span<const uint8_t> bytes) {
  return Decoded<kOpeningBytes, Opening>(bytes, WireType::kOpen, WireType::kOpen);
}
std::optional<Challenge> DecodeChallenge(absl::Span<const uint8_t> bytes) {
  return Decoded<kChallengeBytes, Challenge>(bytes, WireType::kChallenge, WireType::kChallenge);
}
std::optional<Handshake> DecodeHandshake(absl::Span<const uint8_t> bytes) {
  return Decoded<kHandshakeBytes, Handshake>(bytes, WireType::kJoin, WireType::kReject);
}
std::optional<Frame> DecodeFrame(absl::Span<const uint8_t> bytes) {
  return Decoded<kFrameBytes, Frame>(bytes, WireType::kReduce, WireType::kError);
}

}  // namespace bfio::worker
