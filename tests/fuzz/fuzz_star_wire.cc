// The star barrier's two messages. A message that decodes is encoded to the same meaning.
#include "tests/fuzz/fuzz.h"
#include "worker/barrier/star/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bfio::worker;
  const absl::Span<const uint8_t> bytes(data, size);
  if (size == kHandshakeBytes) {
    if (const auto handshake = DecodeHandshake(bytes)) {
      bfio::fuzz::Check(handshake->address.host.size() <= bfio::kMaxHostBytes,
                        "a host name has at most 253 bytes");
      const auto again = DecodeHandshake(Encode(*handshake));
      bfio::fuzz::Check(again.has_value() && again->type == handshake->type &&
                            again->epoch == handshake->epoch && again->rank == handshake->rank &&
                            again->address == handshake->address,
                        "a handshake survives encoding");
    }
  }
  if (size == kFrameBytes) {
    if (const auto frame = DecodeFrame(bytes)) {
      const auto once = Encode(*frame);
      const auto again = DecodeFrame(once);
      bfio::fuzz::Check(again.has_value() && Encode(*again) == once, "a frame survives encoding");
    }
  }
  return 0;
}
