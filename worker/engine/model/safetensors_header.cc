#include "worker/engine/model/safetensors_header.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/quote.h"
#include "common/json/json_reader.h"
#include "worker/engine/model/json_fields.h"

namespace bfio::worker {
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

}  // namespace bfio::worker
