#include "worker/engine/model/checkpoint.h"

#include <sys/stat.h>

#include <cassert>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/quote.h"
#include "common/base/status_macros.h"
#include "common/json/json_reader.h"
#include "worker/engine/model/mapped_file.h"

namespace bfio::worker {
namespace {

// The index of Llama 405B has 100 kilobytes.
constexpr size_t kMaxIndexBytes = 16 << 20;
constexpr char kSingle[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";

// {"metadata": anything, "weight_map": {"tensor": "file", ...}}
class IndexEvents final : public JsonEvents {
 public:
  WeightMap TakeMap() { return std::move(map_); }
  bool found() const { return found_; }

  bool start_object(std::size_t) override {
    ++depth_;
    if (depth_ == 2 && top_field_ == "weight_map") in_map_ = true;
    return !in_map_ || depth_ == 2 || Skip("an object");
  }
  bool key(string_t& name) override {
    if (depth_ == 1) {
      if (name == "weight_map" && found_) return Fail("has 'weight_map' twice");
      found_ = found_ || name == "weight_map";
      top_field_ = std::move(name);
    } else if (in_map_) {
      tensor_ = std::move(name);
    }
    return true;
  }
  bool end_object() override {
    if (depth_ == 2) in_map_ = false;
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    if (!Skip("an array")) return false;
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool string(string_t& file) override {
    if (!in_map_) return Skip("a string");
    if (file.size() > 255 || file.find_first_of("/\\") != std::string::npos ||
        !absl::EndsWith(file, ".safetensors")) {
      return Fail(absl::StrCat("puts tensor ", Quote(tensor_), " into ", Quote(file),
                               ", which is not the plain name of a .safetensors file"));
    }
    if (map_.contains(tensor_)) return Fail(absl::StrCat("has tensor ", Quote(tensor_), " twice"));
    map_.emplace(tensor_, std::move(file));
    return true;
  }
  bool null() override { return Skip("null"); }
  bool boolean(bool) override { return Skip("a boolean"); }
  bool number_integer(number_integer_t) override { return Skip("a number"); }
  bool number_unsigned(number_unsigned_t) override { return Skip("a number"); }
  bool number_float(number_float_t, const string_t&) override { return Skip("a number"); }

 private:
  // Other fields may have any value; the map itself and its entries may not.
  bool Skip(absl::string_view what) {
    if (depth_ > 0 && top_field_ != "weight_map") return true;
    return Fail(absl::StrCat("has ", what, Where()));
  }
  std::string Where() const override {
    return in_map_ ? absl::StrCat(" for tensor ", Quote(tensor_), " instead of a file name")
                   : " instead of an object";
  }

  int depth_ = 0;
  bool in_map_ = false;
  bool found_ = false;
  std::string top_field_;
  std::string tensor_;
  WeightMap map_;
};

bool Exists(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0;
}

}  // namespace

absl::StatusOr<WeightMap> ParseWeightMap(absl::string_view json, absl::string_view path) {
  IndexEvents events;
  std::string fault = events.Parse(json, kMaxIndexBytes);
  if (fault.empty() && !events.found()) fault = "has no 'weight_map'";
  if (!fault.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", fault));
  WeightMap map = events.TakeMap();
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
