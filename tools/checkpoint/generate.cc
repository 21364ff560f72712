#include "tools/checkpoint/generate.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/append_file.h"
#include "common/base/atomic_file.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "worker/engine/model/layout.h"

namespace bfio::checkpoint {
namespace {

using json = nlohmann::ordered_json;
using worker::TensorSpec;

// Standard deviation of the weights in units of 1/sqrt(inputs). Above 1, attention clearly prefers some
// positions and each layer changes its input noticeably.
constexpr double kGain = 1.5;
// Values written at once. Even, because RandomTensor::Append requires it.
constexpr int64_t kChunk = 1 << 18;

int64_t Elements(const TensorSpec& spec) {
  int64_t product = 1;
  for (const int64_t size : spec.shape) product *= size;
  return product;
}

Spread SpreadOf(const TensorSpec& spec, const CheckpointOptions& options) {
  // The weight of the norm is the only scale of normalised queries and keys.
  if (absl::StrContains(spec.name, "q_norm") || absl::StrContains(spec.name, "k_norm")) return {kGain, 0.25};
  if (absl::StrContains(spec.name, "norm")) return {1, 0.25};
  // The standard deviation of a uniform value is its half width over sqrt(3).
  const double wide = std::sqrt(3.0);
  if (absl::EndsWith(spec.name, ".bias")) return {0, 0.3 * wide};
  const double inputs = std::sqrt(static_cast<double>(spec.shape[1]));
  const bool embedding = spec.name == worker::kEmbeddingName;
  if (spec.name == worker::kHeadName || (embedding && options.model.tied_embeddings)) {
    return {0, options.logit_std * wide / inputs};
  }
  return {0, embedding ? wide : kGain * wide / inputs};
}

// The beginning of a safetensors file: header length and header, padded so that the data begins at a multiple
// of 8.
std::string Header(const std::vector<TensorSpec>& tensors, worker::DType dtype) {
  json header = {{"__metadata__", {{"format", "pt"}}}};
  int64_t at = 0;
  for (const TensorSpec& spec : tensors) {
    const int64_t end = at + Elements(spec) * SizeOf(dtype);
    header[spec.name] = {
        {"dtype", std::string(DTypeName(dtype))}, {"shape", spec.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length;
  for (uint64_t rest = text.size(), i = 0; i < 8; ++i, rest >>= 8)
    length.push_back(static_cast<char>(rest & 255));
  return length + text;
}

absl::Status WriteFile(const std::string& path, const std::vector<TensorSpec>& tensors,
                       const CheckpointOptions& options) {
  BFIO_ASSIGN_OR_RETURN(AppendFile file, AppendFile::Open(path, AppendFile::Mode::kCreate, 0644));
  absl::Status status = file.Append(Header(tensors, options.dtype));
  std::string bytes;
  for (const TensorSpec& spec : tensors) {
    RandomTensor values(options.seed, spec.name, SpreadOf(spec, options));
    for (int64_t left = Elements(spec); left > 0 && status.ok(); left -= kChunk) {
      bytes.clear();
      values.Append(std::min(left, kChunk), options.dtype, bytes);
      status = file.Append(bytes);
    }
  }
  return status;
}

// Distributes whole tensors, in order, over files of about the same size. No file is empty.
std::vector<std::vector<TensorSpec>> Split(std::vector<TensorSpec> tensors, int64_t shards) {
  int64_t left = 0;
  for (const TensorSpec& spec : tensors) left += Elements(spec);
  std::vector<std::vector<TensorSpec>> files(1);
  int64_t size = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t files_left = shards - static_cast<int64_t>(files.size());
    const bool full = size >= left / (files_left + 1);
    const bool one_each = static_cast<int64_t>(tensors.size() - i) <= files_left;
    if (!files.back().empty() && files_left > 0 && (full || one_each)) {
      files.emplace_back();
      left -= size;
      size = 0;
    }
    size += Elements(tensors[i]);
    files.back().push_back(std::move(tensors[i]));
  }
  return files;
}

absl::Status WriteShards(const std::string& directory, const CheckpointOptions& options,
                         const std::vector<std::vector<TensorSpec>>& files) {
  json map = json::object();
  int64_t total = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, files.size());
    BFIO_RETURN_IF_ERROR(WriteFile(absl::StrCat(directory, "/", name), files[i], options));
    for (const TensorSpec& spec : files[i]) {
      map[spec.name] = name;
      total += Elements(spec) * SizeOf(options.dtype);
    }
  }
  const json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  return WriteFileAtomically(absl::StrCat(directory, "/model.safetensors.index.json"), index.dump(2) + "\n");
}

absl::Status MakeEmptyDirectory(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const bool empty = !error && std::filesystem::is_empty(directory, error);
  if (error) return absl::InvalidArgumentError(absl::StrCat(directory, ": ", error.message()));
  if (empty) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat(directory, ": the directory is not empty; empty it first or choose another --out"));
}

absl::Status CheckOptions(const CheckpointOptions& options, size_t tensors) {
  if (options.shards < 1 || options.shards > static_cast<int64_t>(tensors)) {
    return absl::InvalidArgumentError(absl::StrCat("shards is ", options.shards, ", must be between 1 and ",
                                                   tensors, " (the number of tensors)"));
  }
  if (!(options.logit_std > 0 && options.logit_std <= 100)) {
    return absl::InvalidArgumentError(
        absl::StrCat("logit_std is ", options.logit_std, ", must be above 0 and at most 100"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteRandomCheckpoint(const CheckpointOptions& options, const std::string& directory) {
  const std::string config = ConfigJson(options);
  // ParseModelConfig decides which models can be described.
  const absl::StatusOr<worker::ModelConfig> parsed = worker::ParseModelConfig(config, "config.json");
  if (!parsed.ok()) return absl::InvalidArgumentError(parsed.status().message());
  std::vector<TensorSpec> tensors = ModelTensors(*parsed);
  absl::Status status = CheckOptions(options, tensors.size());
  if (status.ok()) status = MakeEmptyDirectory(directory);
  if (!status.ok()) return status;
  status = options.shards == 1 ? WriteFile(absl::StrCat(directory, "/model.safetensors"), tensors, options)
                               : WriteShards(directory, options, Split(std::move(tensors), options.shards));
  if (!status.ok()) return status;
  return WriteFileAtomically(absl::StrCat(directory, "/config.json"), config);
}

namespace {

using worker::DType;

// The FNV-1a hash of `name`.
uint64_t HashOf(absl::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

void Store(float value, DType dtype, char* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, &value, sizeof(value));
    return;
  }
  const uint16_t half = dtype == DType::kBF16 ? RoundToBF16(value) : RoundToF16(value);
  std::memcpy(to, &half, sizeof(half));
}

}  // namespace

RandomTensor::RandomTensor(uint64_t seed, absl::string_view name, Spread spread)
    : rng_(Rng(seed).Fork(HashOf(name))), spread_(spread) {}

void RandomTensor::Append(int64_t count, DType dtype, std::string& bytes) {
  const int64_t size = SizeOf(dtype);
  const size_t begin = bytes.size();
  bytes.resize(begin + count * size);
  char* const to = bytes.data() + begin;
  uint64_t bits = 0;
  for (int64_t i = 0; i < count; ++i) {
    // One draw has the bits of two values.
    bits = i % 2 == 0 ? rng_.Next() : bits >> 32;
    const double unit = static_cast<int32_t>(static_cast<uint32_t>(bits)) * 0x1.0p-31;
    Store(static_cast<float>(spread_.center + unit * spread_.half_width), dtype, to + i * size);
  }
}

uint16_t RoundToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

uint16_t RoundToF16(float value) {
  const uint16_t sign = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16 & 0x8000);
  const float size = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7e00;
  // Halfway from the largest float16 value, 65504, to the value that would follow it.
  if (size >= 65520.0f) return sign | 0x7c00;
  // Below 2^-14 the values of float16 are 2^-24 apart. Floats near 0.5 are 2^-24 apart too, so adding 0.5
  // rounds.
  if (size < 0x1.0p-14f) return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(size + 0.5f));
  // The mantissa loses 13 bits, and the bias of the exponent changes from 127 to 15.
  const uint32_t bits = std::bit_cast<uint32_t>(size) - (uint32_t{112} << 23);
  return sign | static_cast<uint16_t>((bits + 0xfff + (bits >> 13 & 1)) >> 13);
}

}  // namespace bfio::checkpoint
