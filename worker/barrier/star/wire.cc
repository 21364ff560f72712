#include "worker/barrier/star/wire.h"

#include <cstring>

namespace bfio::worker {
namespace {

constexpr uint32_t kMagic = 0x42694642;  // "BFiB" in memory
constexpr uint16_t kVersion = 4;

class Writer {
 public:
  explicit Writer(absl::Span<uint8_t> out) : out_(out) {}

  template <typename T>
  void Put(T value) {
    const auto bits = static_cast<uint64_t>(value);
    for (size_t i = 0; i < sizeof(T); ++i) out_[at_++] = static_cast<uint8_t>(bits >> (8 * i));
  }
  template <typename Bytes>
  void PutBytes(const Bytes& bytes) {
    std::memcpy(out_.data() + at_, bytes.data(), bytes.size());
    at_ += bytes.size();
  }

 private:
  absl::Span<uint8_t> out_;
  size_t at_ = 0;
};

class Reader {
 public:
  explicit Reader(absl::Span<const uint8_t> in) : in_(in) {}

  template <typename T>
  T Get() {
    uint64_t bits = 0;
    for (size_t i = 0; i < sizeof(T); ++i) bits |= uint64_t{in_[at_++]} << (8 * i);
    return static_cast<T>(bits);
  }
  template <size_t kCount>
  std::array<uint8_t, kCount> GetArray() {
    std::array<uint8_t, kCount> bytes;
    std::memcpy(bytes.data(), in_.data() + at_, kCount);
    at_ += kCount;
    return bytes;
  }
  std::string GetBytes(size_t count) {
    std::string bytes(reinterpret_cast<const char*>(in_.data() + at_), count);
    at_ += count;
    return bytes;
  }

 private:
  absl::Span<const uint8_t> in_;
  size_t at_ = 0;
};

// magic u32, version u16, type u16
void PutPrefix(Writer& writer, WireType type) {
  writer.Put(kMagic);
  writer.Put(kVersion);
  writer.Put(static_cast<uint16_t>(type));
}

std::optional<WireType> GetPrefix(Reader& reader, WireType first, WireType last) {
  if (reader.Get<uint32_t>() != kMagic || reader.Get<uint16_t>() != kVersion) return std::nullopt;
  const auto type = static_cast<WireType>(reader.Get<uint16_t>());
  if (type < first || type > last) return std::nullopt;
  return type;
}

}  // namespace

std::array<uint8_t, kOpeningBytes> Encode(const Opening& opening) {
  std::array<uint8_t, kOpeningBytes> bytes{};
  Writer writer(absl::MakeSpan(bytes));
  PutPrefix(writer, WireType::kOpen);
  writer.PutBytes(opening.nonce);
  return bytes;
}

std::array<uint8_t, kChallengeBytes> Encode(const Challenge& challenge) {
  std::array<uint8_t, kChallengeBytes> bytes{};
  Writer writer(absl::MakeSpan(bytes));
  PutPrefix(writer, WireType::kChallenge);
  writer.PutBytes(challenge.nonce);
  writer.PutBytes(challenge.proof);
  return bytes;
}

std::array<uint8_t, kHandshakeBytes> Encode(const Handshake& handshake) {
  std::array<uint8_t, kHandshakeBytes> bytes{};
  Writer writer(absl::MakeSpan(bytes));
  PutPrefix(writer, handshake.type);
  writer.Put(handshake.epoch);
  writer.Put(handshake.rank);
  writer.Put(handshake.world_size);
  writer.Put(handshake.address.port);
  const std::string host = handshake.address.host.substr(0, kMaxHostBytes);
  writer.Put(static_cast<uint16_t>(host.size()));
  writer.PutBytes(host);
  return bytes;
}

std::array<uint8_t, kFrameBytes> Encode(const Frame& frame) {
  std::array<uint8_t, kFrameBytes> bytes{};
  Writer writer(absl::MakeSpan(bytes));
  PutPrefix(writer, frame.type);
  writer.Put(frame.epoch);
  writer.Put(frame.rank);
  writer.Put(static_cast<int32_t>(frame.code));
  writer.Put(frame.step);
  writer.Put(frame.view.max_load_tokens);
  writer.Put(frame.view.sum_load_tokens);
  writer.Put(frame.view.max_local_ns);
  writer.Put(frame.view.sum_local_ns);
  writer.Put(frame.view.sum_active);
  writer.Put(uint64_t{frame.view.stop_flags});
  return bytes;
}

std::optional<Opening> DecodeOpening(absl::Span<const uint8_t> bytes) {
  if (bytes.size() != kOpeningBytes) return std::nullopt;
  Reader reader(bytes);
  if (!GetPrefix(reader, WireType::kOpen, WireType::kOpen).has_value()) return std::nullopt;
  return Opening{reader.GetArray<sizeof(Nonce)>()};
}

std::optional<Challenge> DecodeChallenge(absl::Span<const uint8_t> bytes) {
  if (bytes.size() != kChallengeBytes) return std::nullopt;
  Reader reader(bytes);
  if (!GetPrefix(reader, WireType::kChallenge, WireType::kChallenge).has_value()) return std::nullopt;
  Challenge challenge;
  challenge.nonce = reader.GetArray<sizeof(Nonce)>();
  challenge.proof = reader.GetArray<sizeof(Proof)>();
  return challenge;
}

std::optional<Handshake> DecodeHandshake(absl::Span<const uint8_t> bytes) {
  if (bytes.size() != kHandshakeBytes) return std::nullopt;
  Reader reader(bytes);
  const auto type = GetPrefix(reader, WireType::kJoin, WireType::kReject);
  if (!type.has_value()) return std::nullopt;
  Handshake handshake;
  handshake.type = *type;
  handshake.epoch = reader.Get<uint64_t>();
  handshake.rank = reader.Get<int32_t>();
  handshake.world_size = reader.Get<int32_t>();
  handshake.address.port = reader.Get<uint16_t>();
  const auto host_bytes = reader.Get<uint16_t>();
  if (host_bytes > kMaxHostBytes) return std::nullopt;
  handshake.address.host = reader.GetBytes(host_bytes);
  return handshake;
}

std::optional<Frame> DecodeFrame(absl::Span<const uint8_t> bytes) {
  if (bytes.size() != kFrameBytes) return std::nullopt;
  Reader reader(bytes);
  const auto type = GetPrefix(reader, WireType::kReduce, WireType::kError);
  if (!type.has_value()) return std::nullopt;
  Frame frame;
  frame.type = *type;
  frame.epoch = reader.Get<uint64_t>();
  frame.rank = reader.Get<int32_t>();
  frame.code = static_cast<absl::StatusCode>(reader.Get<int32_t>());
  frame.step = reader.Get<int64_t>();
  frame.view.max_load_tokens = reader.Get<int64_t>();
  frame.view.sum_load_tokens = reader.Get<int64_t>();
  frame.view.max_local_ns = reader.Get<int64_t>();
  frame.view.sum_local_ns = reader.Get<int64_t>();
  frame.view.sum_active = reader.Get<int64_t>();
  frame.view.stop_flags = static_cast<uint32_t>(reader.Get<uint64_t>());
  return frame;
}

}  // namespace bfio::worker
