// What the fuzz targets share.
//
// A target is one file with LLVMFuzzerTestOneInput: whatever the bytes are, the code under test answers with
// a value or a status, keeps the promises of its header (Check), and neither crashes, hangs nor leaks.
// tests/fuzz/run builds the targets with libFuzzer; everywhere else they are linked with replay_main.cc and
// run over their corpus. Threads: one.
#ifndef BFIO_TESTS_FUZZ_FUZZ_H_
#define BFIO_TESTS_FUZZ_FUZZ_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/string_view.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace bfio::fuzz {

// A promise that does not hold is a finding.
inline void Check(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", promise);
  std::abort();
}

inline absl::string_view Text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Reads small values off an input, for targets whose input is a series of operations. Zeros after its end.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(Text(data, size)) {}

  bool empty() const { return rest_.empty(); }
  uint8_t Byte() {
    if (rest_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return byte;
  }
  // Small numbers mostly, any number sometimes.
  uint64_t Number() {
    const uint8_t kind = Byte();
    if (kind < 0xf0) return kind;
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | Byte();
    return value;
  }
  // Its length is in front of it.
  std::string Chunk() {
    // One after the other: compilers evaluate operands in orders of their own.
    size_t length = Byte();
    length = length << 8 | Byte();
    length = std::min(length, rest_.size());
    std::string chunk(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return chunk;
  }

 private:
  absl::string_view rest_;
};

}  // namespace bfio::fuzz

#endif  // BFIO_TESTS_FUZZ_FUZZ_H_
