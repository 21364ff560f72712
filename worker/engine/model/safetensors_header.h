// The JSON header of a safetensors file, as parsed. Checks only the grammar: which fields, of which types,
// without duplicates. Whether they fit the data that follows is checked in safetensors.cc. Parsed as a
// stream, so memory is bounded by what is kept. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bfio::worker {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  // Relative to the end of the header.
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Entries in the order of the header. INVALID_ARGUMENT describes the fault; the caller puts the file's name
// in front of it.
absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(absl::string_view json);

}  // namespace bfio::worker
