// The values of one random tensor, generated chunk by chunk.
//
// Purpose: the same values on every machine. They come from integer draws, one multiplication and one
// addition in double; they are uniform rather than normal because implementations of the logarithm differ.
// Threads: each object is used by one thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/rng.h"
#include "worker/engine/model/safetensors.h"

namespace bfio::checkpoint {

// A uniform distribution over [center - half_width, center + half_width).
struct Spread {
  double center = 0;
  double half_width = 0;
};

class RandomTensor {
 public:
  RandomTensor(uint64_t seed, absl::string_view name, Spread spread);

  // Appends the next `count` values to `bytes`. REQUIRES: `count` is even, except in the last call.
  void Append(int64_t count, worker::DType dtype, std::string& bytes);

 private:
  Rng rng_;
  const Spread spread_;
};

// Rounds to the nearest value, ties to even, as hardware does.
uint16_t RoundToBF16(float value);
uint16_t RoundToF16(float value);

}  // namespace bfio::checkpoint
