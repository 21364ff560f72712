#include "worker/engine/model/checkpoint.h"

#include <sys/stat.h>

#include <cassert>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/quote.h"
#include "common/base/status_macros.h"
#include "common/json/json_fields.h"
#include "common/json/json_reader.h"
#include "worker/engine/model/mapped_file.h"

namespace bfio::worker {
namespace {

// The index of Llama 405B has 100 kilobytes.
constexpr size_t kMaxIndexBytes = 16 << 20;
constexpr char kSingle[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";

bool Exists(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0;
}

}  // namespace

// {"metadata": anything, "weight_map": {"tensor": "file", ...}}
absl::StatusOr<WeightMap> ParseWeightMap(absl::string_view json, absl::string_view path) {
  WeightMap map;
  int found = 0;
  const auto wanted = [&found](const JsonPath& at) {
    if (at.Is({})) return at.kind != JsonPath::Kind::kObject;
    if (at.Is({"weight_map"})) return ++found > 1 || at.kind != JsonPath::Kind::kObject;
    return at.Is({"weight_map", "*"});
  };
  const auto add = [&map, &found](JsonPath& at, nlohmann::json& file) {
    if (found > 1) return absl::InvalidArgumentError("has 'weight_map' twice");
    if (at.names.size() < 2)
      return absl::InvalidArgumentError(absl::StrCat("has ", Shown(file), " instead of an object"));
    std::string& tensor = at.names[1];
    if (!file.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat("has ", Shown(file), " for tensor ", Quote(tensor), " instead of a file name"));
    }
    std::string& name = file.get_ref<std::string&>();
    if (name.size() > 255 || name.find_first_of("/\\") != std::string::npos ||
        !absl::EndsWith(name, ".safetensors")) {
      return absl::InvalidArgumentError(absl::StrCat("puts tensor ", Quote(tensor), " into ", Quote(name),
                                                     ", which is not the plain name of a .safetensors file"));
    }
    if (!map.emplace(tensor, std::move(name)).second)
      return absl::InvalidArgumentError(absl::StrCat("has tensor ", Quote(tensor), " twice"));
    return absl::OkStatus();
  };
  BFIO_RETURN_IF_ERROR(ReadJson(json, path, {.bytes = kMaxIndexBytes}, wanted, add));
  if (found == 0) return absl::InvalidArgumentError(absl::StrCat(path, ": has no 'weight_map'"));
  if (map.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": 'weight_map' is empty"));
  return map;
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& directory) {
  const std::string single = absl::StrCat(directory, "/", kSingle),
                    index = absl::StrCat(directory, "/", kIndex);
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  if (Exists(single) && Exists(index)) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory, ": has both ", kSingle, " and ", kIndex, "; remove one of them"));
  }
  if (Exists(index)) {
    BFIO_RETURN_IF_ERROR(checkpoint->AddShards(directory, index));
    return checkpoint;
  }
  if (!Exists(single)) {
    return absl::NotFoundError(absl::StrCat(directory, ": has neither ", kSingle, " nor ", kIndex,
                                            "; other formats are not supported"));
  }
  BFIO_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Open(single));
  checkpoint->Add(std::move(file));
  return checkpoint;
}

absl::Status Checkpoint::AddShards(const std::string& directory, const std::string& index) {
  BFIO_ASSIGN_OR_RETURN(const MappedFile text, MappedFile::Open(index));
  BFIO_ASSIGN_OR_RETURN(const WeightMap map, ParseWeightMap(text.text(), index));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : map) shards.insert(shard);
  for (const std::string& shard : shards) {
    BFIO_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file,
                          SafetensorsFile::Open(absl::StrCat(directory, "/", shard)));
    for (const auto& [tensor, view] : file->tensors()) {
      const auto place = map.find(tensor);
      if (place != map.end() && place->second == shard) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(file->path(), ": tensor ", Quote(tensor), ": ",
                       place == map.end() ? "is not in the index"
                                          : absl::StrCat("the index has it in ", Quote(place->second))));
    }
    Add(std::move(file));
  }
  for (const auto& [tensor, shard] : map) {
    if (tensors_.contains(tensor)) continue;
    return absl::InvalidArgumentError(absl::StrCat(directory, "/", shard, ": tensor ", Quote(tensor),
                                                   ": is in the index but not in the file"));
  }
  return absl::OkStatus();
}

void Checkpoint::Add(std::unique_ptr<SafetensorsFile> file) {
  for (const auto& [name, view] : file->tensors()) {
    tensors_.emplace(name, view);
    file_of_.emplace(name, file.get());
  }
  files_.push_back(std::move(file));
}

const std::string& Checkpoint::FileOf(absl::string_view name) const {
  const auto found = file_of_.find(name);
  assert(found != file_of_.end());
  return found->second->path();
}

}  // namespace bfio::worker
