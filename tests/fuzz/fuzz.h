// Shared code of the fuzz targets.
//
// A target is one file with LLVMFuzzerTestOneInput: for any bytes, the code under test returns a value or a
// status, keeps the guarantees of its header (Check), and neither crashes, hangs nor leaks. tests/fuzz/run
// builds the targets with libFuzzer; everywhere else they are linked with replay_main.cc and run over their
// corpus. Threads: one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/string_view.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace bfio::fuzz {

// Aborts, so that a violated guarantee is a finding.
inline void Check(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", promise);
  std::abort();
}

inline absl::string_view Text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Reads small values from an input, for targets whose input is a sequence of operations. Zeros after its end.
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
  // Usually a small number, sometimes any number.
  uint64_t Number() {
    const uint8_t kind = Byte();
    if (kind < 0xf0) return kind;
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | Byte();
    return value;
  }
  // A string with its length in front.
  std::string Chunk() {
    // Two statements, because the order of evaluation of operands is unspecified.
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
