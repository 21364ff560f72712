// Consecutive blocks (layers) of a model, counted from 0. The blocks that a server of a chain hosts, or
// computes for a chain; shared by the code that composes, plans and serves chains. Threads: plain data.
#pragma once

#include <cstdint>

namespace bfio {

// Blocks [first, first + count); empty if count is 0.
struct BlockRange {
  int32_t first = 0;
  int32_t count = 0;

  int32_t end() const { return first + count; }
  bool Contains(const BlockRange& other) const { return first <= other.first && other.end() <= end(); }
  friend bool operator==(const BlockRange&, const BlockRange&) = default;
};

}  // namespace bfio
