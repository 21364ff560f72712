#include "worker/engine/model/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/annotated.h"
#include "common/base/quote.h"
#include "common/base/status_macros.h"
#include "common/json/json_fields.h"
#include "common/json/json_reader.h"

namespace bfio::worker {

// The JSON header of a safetensors file, as parsed. Checks only the grammar: which fields, of which types,
// without duplicates. Whether they fit the data that follows is checked in safetensors.cc. Parsed as a
// stream, so memory is bounded by what is kept. Threads: pure functions.
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

namespace {

// Models here have at most 4 dimensions and some thousand tensors; the limits leave a margin for other files.
constexpr size_t kMaxRank = 8;
constexpr size_t kMaxTensors = 100000;
// Of a tensor's fields.
constexpr size_t kMaxValues = 64;

constexpr const char* kFields[] = {"dtype", "shape", "data_offsets"};

// {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
absl::Status ReadTensor(const nlohmann::json& tensor, SafetensorsEntry& entry) {
  const auto fault = [&entry](const std::string& what, const char* field = nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(what, ", in tensor ", Quote(entry.name),
                                                   field == nullptr ? "" : ", ",
                                                   field == nullptr ? "" : field));
  };
  if (!tensor.is_object()) return fault(absl::StrCat("has ", Shown(tensor), " where an object belongs"));
  for (const auto& [field, value] : tensor.items()) {
    if (std::find(std::begin(kFields), std::end(kFields), field) == std::end(kFields))
      return fault(absl::StrCat("has an unknown field ", Quote(field)));
  }
  for (const char* field : kFields) {
    if (!tensor.contains(field)) return fault(absl::StrCat("has no ", field));
    const nlohmann::json& value = tensor[field];
    const bool list = field != kFields[0];
    if (list ? !value.is_array() : !value.is_string())
      return fault(absl::StrCat("has ", Shown(value), " where ", list ? "an array" : "a string", " belongs"),
                   field);
    if (!list) continue;
    for (const nlohmann::json& number : value) {
      if (!number.is_number_unsigned())
        return fault(absl::StrCat("has ", Shown(number), " where a whole number belongs"), field);
    }
  }
  entry.dtype = tensor["dtype"];
  entry.shape = tensor["shape"].get<std::vector<uint64_t>>();
  if (entry.shape.size() > kMaxRank) return fault(absl::StrCat("has more than ", kMaxRank, " dimensions"));
  const auto offsets = tensor["data_offsets"].get<std::vector<uint64_t>>();
  if (offsets.size() != 2)
    return fault(offsets.size() > 2 ? "has more than two numbers" : "has fewer than two numbers", kFields[2]);
  entry.begin = offsets[0];
  entry.end = offsets[1];
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(absl::string_view json) {
  constexpr char kMetadata[] = "__metadata__";
  std::set<std::string> names;
  std::vector<SafetensorsEntry> entries;
  const auto wanted = [&](const JsonPath& at) {
    return at.names.size() == 1 ? at.names[0] != kMetadata || at.kind != JsonPath::Kind::kObject
                                : at.Is({kMetadata, "*"});
  };
  const auto add = [&](JsonPath& at, nlohmann::json& value) {
    if (at.names[0] == kMetadata) {
      if (at.names.size() == 1 ? value.is_null() : value.is_string()) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat("has ", Shown(value), " where none belongs, in ", kMetadata));
    }
    if (!names.insert(at.names[0]).second)
      return absl::InvalidArgumentError(absl::StrCat("has ", Quote(at.names[0]), " twice"));
    if (entries.size() == kMaxTensors)
      return absl::InvalidArgumentError(absl::StrCat("has more than ", kMaxTensors, " tensors"));
    entries.emplace_back().name = at.names[0];
    return ReadTensor(value, entries.back());
  };
  const absl::Status status = ReadJson(json, "", {.bytes = json.size(), .values = kMaxValues}, wanted, add);
  if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("the header ", status.message()));
  return entries;
}

namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian and read in place");

constexpr size_t kPrefix = sizeof(uint64_t);
// The format's own limit.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

std::optional<DType> ParseDType(absl::string_view name) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    if (name == DTypeName(dtype)) return dtype;
  }
  return std::nullopt;
}

// Size of a shape in bytes; absent when it does not fit an int64_t.
std::optional<uint64_t> BytesOf(const std::vector<uint64_t>& shape, DType dtype) {
  int64_t bytes = SizeOf(dtype);
  for (const uint64_t size : shape) {
    if (size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) ||
        __builtin_mul_overflow(bytes, static_cast<int64_t>(size), &bytes)) {
      return std::nullopt;
    }
  }
  return static_cast<uint64_t>(bytes);
}

// The text of the header, or an error if its length is invalid.
absl::StatusOr<absl::string_view> Header(absl::Span<const std::byte> file) {
  if (file.size() < kPrefix) {
    return absl::InvalidArgumentError(
        absl::StrCat("is truncated: ", file.size(), " bytes, fewer than the ", kPrefix, " of the length"));
  }
  uint64_t length = 0;
  std::memcpy(&length, file.data(), kPrefix);
  if (length > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("is not safetensors: the header length is ", length,
                                                   " bytes, more than the ", kMaxHeaderBytes, " allowed"));
  }
  if (length > file.size() - kPrefix) {
    return absl::InvalidArgumentError(absl::StrCat("is truncated: the header length is ", length,
                                                   " bytes, but the file has only ", file.size() - kPrefix,
                                                   " more"));
  }
  const absl::string_view text(reinterpret_cast<const char*>(file.data()) + kPrefix, length);
  if (text.empty() || text[0] != '{') {
    return absl::InvalidArgumentError("is not safetensors: the header does not begin with '{'");
  }
  return text;
}

absl::StatusOr<TensorView> View(const SafetensorsEntry& entry, absl::Span<const std::byte> data) {
  const std::optional<DType> dtype = ParseDType(entry.dtype);
  if (!dtype) {
    return absl::UnimplementedError(
        absl::StrCat("has dtype ", Quote(entry.dtype), "; BF16, F16 and F32 are supported"));
  }
  if (entry.begin > entry.end) {
    return absl::InvalidArgumentError(
        absl::StrCat("begins at ", entry.begin, " and ends before that, at ", entry.end));
  }
  if (entry.end > data.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ends at byte ", entry.end, " of the data, which has only ", data.size(), ": truncated?"));
  }
  const std::optional<uint64_t> bytes = BytesOf(entry.shape, *dtype);
  const std::string shape = absl::StrCat("shape [", absl::StrJoin(entry.shape, ", "), "]");
  if (!bytes) return absl::InvalidArgumentError(absl::StrCat("has ", shape, ", which is too large"));
  if (*bytes != entry.end - entry.begin) {
    return absl::InvalidArgumentError(absl::StrCat("has ", shape, " of ", entry.dtype, ", ", *bytes,
                                                   " bytes, but data_offsets have ",
                                                   entry.end - entry.begin));
  }
  const std::byte* const begin = data.data() + entry.begin;
  if (reinterpret_cast<uintptr_t>(begin) % SizeOf(*dtype) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("begins at ", entry.begin,
                                                   " of the data and is not aligned to its ", SizeOf(*dtype),
                                                   "-byte elements"));
  }
  return TensorView{*dtype, {entry.shape.begin(), entry.shape.end()}, begin};
}

// Checks that every byte belongs to exactly one tensor.
absl::Status CheckCoverage(std::vector<SafetensorsEntry>& entries, uint64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t covered = 0;
  std::string last = "the header";
  for (const SafetensorsEntry& entry : entries) {
    const std::string name = absl::StrCat("tensor ", Quote(entry.name));
    if (entry.begin < covered) return absl::InvalidArgumentError(absl::StrCat(name, ": overlaps ", last));
    if (entry.begin > covered) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": a gap of ", entry.begin - covered, " bytes lies between it and ", last));
    }
    covered = entry.end;
    last = name;
  }
  if (covered == data_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(data_bytes - covered, " bytes after ", last, " belong to no tensor"));
}

absl::StatusOr<TensorMap> ParseFile(absl::Span<const std::byte> file) {
  BFIO_ASSIGN_OR_RETURN(const absl::string_view header, Header(file));
  BFIO_ASSIGN_OR_RETURN(std::vector<SafetensorsEntry> entries, ParseSafetensorsHeader(header));
  const absl::Span<const std::byte> data = file.subspan(kPrefix + header.size());
  TensorMap tensors;
  for (const SafetensorsEntry& entry : entries) {
    BFIO_ASSIGN_OR_RETURN(TensorView view,
                          Annotated(absl::StrCat("tensor ", Quote(entry.name)), View(entry, data)));
    tensors.emplace(entry.name, view);
  }
  BFIO_RETURN_IF_ERROR(CheckCoverage(entries, data.size()));
  return tensors;
}

}  // namespace

int64_t SizeOf(DType dtype) {
  return dtype == DType::kF32 ? 4 : 2;
}

absl::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return "BF16";
    case DType::kF16: return "F16";
    case DType::kF32: return "F32";
  }
  return "";
}

absl::StatusOr<TensorMap> ParseSafetensors(absl::Span<const std::byte> file, absl::string_view path) {
  return Annotated(path, ParseFile(file));
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  BFIO_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  BFIO_ASSIGN_OR_RETURN(TensorMap tensors, ParseSafetensors(file.bytes(), path));
  // A moved mapping keeps its address, so the tensors' views stay valid.
  return std::unique_ptr<SafetensorsFile>(new SafetensorsFile(std::move(file), std::move(tensors)));
}

}  // namespace bfio::worker
