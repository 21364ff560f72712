// The header of a *.safetensors and the views into the file.
#include <cstring>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "worker/engine/model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Aligned to 8, as a memory-mapped file is.
  std::vector<uint64_t> aligned(size / 8 + 1);
  if (size > 0) std::memcpy(aligned.data(), data, size);
  const auto* file = reinterpret_cast<const std::byte*>(aligned.data());
  const auto tensors = bfio::worker::ParseSafetensors({file, size}, "fuzz");
  if (!tensors.ok()) {
    const absl::string_view why = tensors.status().message();
    bfio::fuzz::Check(why.find("fuzz: ") == 0 && why.find('\n') == why.npos, "an error is one line");
    return 0;
  }
  for (const auto& [name, view] : *tensors) {
    bfio::fuzz::Check(view.elements() >= 0 && view.bytes() >= 0, "sizes are not negative");
    bfio::fuzz::Check(view.data >= file && view.data + view.bytes() <= file + size,
                      "a view lies within the file");
  }
  return 0;
}
