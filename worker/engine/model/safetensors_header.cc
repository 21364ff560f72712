#include "worker/engine/model/safetensors_header.h"

#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/quote.h"
#include "common/json/json_reader.h"

namespace bfio::worker {
namespace {

// Models here have at most 4 dimensions and some thousand tensors; the limits leave a margin for other files.
constexpr size_t kMaxRank = 8;
constexpr size_t kMaxTensors = 100000;

class HeaderEvents final : public JsonEvents {
 public:
  std::vector<SafetensorsEntry> TakeEntries() { return std::move(entries_); }

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::kBefore:
        return Go(Place::kTop);
      case Place::kTop:
        break;
      default:
        return JsonEvents::start_object(0);
    }
    if (field_ == "__metadata__") return Go(Place::kMetadata);
    if (entries_.size() == kMaxTensors) {
      return Fail(absl::StrCat("has more than ", kMaxTensors, " tensors"));
    }
    entries_.emplace_back().name = field_;
    seen_.clear();
    return Go(Place::kTensor);
  }

  bool key(string_t& name) override {
    field_ = std::move(name);
    if (place_ == Place::kTop && !names_.insert(field_).second) {
      return Fail(absl::StrCat("has ", Quote(field_), " twice"));
    }
    if (place_ != Place::kTensor) return true;
    if (field_ != "dtype" && field_ != "shape" && field_ != "data_offsets") {
      return Fail(absl::StrCat("has an unknown field ", Quote(field_), Where()));
    }
    if (!seen_.insert(field_).second) return Fail(absl::StrCat("has ", field_, " twice", Where()));
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTop) return Go(Place::kAfter);
    if (place_ == Place::kTensor) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (!seen_.contains(field)) return Fail(absl::StrCat("has no ", field, Where()));
      }
    }
    return Go(Place::kTop);
  }

  bool null() override { return (place_ == Place::kTop && field_ == "__metadata__") || JsonEvents::null(); }

  bool string(string_t& text) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kTensor || field_ != "dtype") return JsonEvents::string(text);
    entries_.back().dtype = std::move(text);
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kTensor || field_ == "dtype") return JsonEvents::start_array(0);
    offsets_ = 0;
    return Go(field_ == "shape" ? Place::kShape : Place::kOffsets);
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      if (entries_.back().shape.size() == kMaxRank) {
        return Fail(absl::StrCat("has more than ", kMaxRank, " dimensions", Where()));
      }
      entries_.back().shape.push_back(value);
      return true;
    }
    if (place_ != Place::kOffsets) return JsonEvents::number_unsigned(value);
    if (offsets_ == 2) return Fail(absl::StrCat("has more than two numbers", Where()));
    (offsets_++ == 0 ? entries_.back().begin : entries_.back().end) = value;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && offsets_ != 2) {
      return Fail(absl::StrCat("has fewer than two numbers", Where()));
    }
    return Go(Place::kTensor);
  }

 private:
  enum class Place { kBefore, kTop, kMetadata, kTensor, kShape, kOffsets, kAfter };

  bool Go(Place place) {
    place_ = place;
    return true;
  }

  std::string Where() const override {
    if (place_ == Place::kBefore || place_ == Place::kAfter) return "";
    if (place_ == Place::kTop) return absl::StrCat(", at ", Quote(field_));
    if (place_ == Place::kMetadata) return ", in __metadata__";
    return absl::StrCat(", in tensor ", Quote(entries_.back().name), ", ",
                        place_ == Place::kTensor ? Quote(field_) : field_);
  }

  Place place_ = Place::kBefore;
  // The latest key.
  std::string field_;
  // Fields of the current tensor.
  std::set<std::string> seen_;
  int offsets_ = 0;
  std::set<std::string> names_;
  std::vector<SafetensorsEntry> entries_;
};

}  // namespace

absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(absl::string_view json) {
  HeaderEvents events;
  const std::string fault = events.Parse(json, json.size());
  if (!fault.empty()) return absl::InvalidArgumentError(absl::StrCat("the header ", fault));
  return events.TakeEntries();
}

}  // namespace bfio::worker
