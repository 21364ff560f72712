// Hand-made safetensors files, valid and invalid, for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/engine/model/safetensors.h"

namespace bfio::testing {

// A file with this header, the claimed header length, and `data_bytes` bytes 0, 1, 2, ...
inline std::string SafetensorsBytes(absl::string_view header, size_t data_bytes, uint64_t claimed_length) {
  std::string file(sizeof(claimed_length), '\0');
  std::memcpy(file.data(), &claimed_length, sizeof(claimed_length));
  file.append(header.data(), header.size());
  for (size_t i = 0; i < data_bytes; ++i) file.push_back(static_cast<char>(i));
  return file;
}

// The same with the true length, padded so that the data is aligned.
inline std::string SafetensorsBytes(std::string header, size_t data_bytes) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return SafetensorsBytes(header, data_bytes, header.size());
}

// Parses a copy that is exactly as large as the file, so that AddressSanitizer detects reads beyond its end,
// and reads every byte of every tensor.
inline absl::StatusOr<worker::TensorMap> ParseAndTouch(absl::string_view file) {
  std::vector<std::byte> copy(file.size());
  if (!file.empty()) std::memcpy(copy.data(), file.data(), file.size());
  absl::StatusOr<worker::TensorMap> tensors = worker::ParseSafetensors(copy, "x.safetensors");
  if (!tensors.ok()) return tensors;
  unsigned sum = 0;
  for (auto& [name, view] : *tensors) {
    for (int64_t i = 0; i < view.bytes(); ++i) sum += static_cast<unsigned>(view.data[i]);
    // The copy is destroyed at the end of this function.
    view.data = nullptr;
  }
  volatile unsigned sink = sum;
  static_cast<void>(sink);
  return tensors;
}

inline void WriteBytes(const std::string& path, absl::string_view bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace bfio::testing
