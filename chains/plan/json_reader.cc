#include "chains/plan/json_reader.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace bfio::plan {

JsonReader::JsonReader(const nlohmann::json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  if (!object_.is_object()) Fail("is not a JSON object");
}

void JsonReader::Fail(const std::string& what) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(where_, ": ", what));
}

bool JsonReader::Has(const char* name) const {
  return object_.is_object() && object_.contains(name) && !object_[name].is_null();
}

std::optional<double> JsonReader::Number(const char* name, double least) {
  if (!Has(name)) return std::nullopt;
  const nlohmann::json& field = object_[name];
  const double value = field.is_number() ? field.get<double>() : std::nan("");
  if (std::isfinite(value) && value >= least) return value;
  Fail(absl::StrCat(name, " must be a number of at least ", least));
  return std::nullopt;
}

std::optional<int64_t> JsonReader::Whole(const char* name, int64_t least, int64_t most) {
  const std::optional<double> value = Number(name, static_cast<double>(least));
  if (!value.has_value()) return std::nullopt;
  if (*value <= static_cast<double>(most) && *value == std::floor(*value))
    return static_cast<int64_t>(*value);
  Fail(absl::StrCat(name, " must be a whole number from ", least, " to ", most));
  return std::nullopt;
}

std::optional<std::string> JsonReader::Text(const char* name) {
  if (!Has(name)) return std::nullopt;
  if (object_[name].is_string()) return object_[name].get<std::string>();
  Fail(absl::StrCat(name, " must be a string"));
  return std::nullopt;
}

double JsonReader::NeededNumber(const char* name, double least) {
  if (!Has(name)) Fail(absl::StrCat(name, " is missing"));
  return Number(name, least).value_or(least);
}

int64_t JsonReader::NeededWhole(const char* name, int64_t least, int64_t most) {
  if (!Has(name)) Fail(absl::StrCat(name, " is missing"));
  return Whole(name, least, most).value_or(least);
}

void JsonReader::AllowOnly(const std::vector<std::string>& known) {
  if (!object_.is_object()) return;
  for (const auto& item : object_.items()) {
    if (std::find(known.begin(), known.end(), item.key()) != known.end()) continue;
    Fail(absl::StrCat("'", item.key(), "' is unknown; known fields: ", absl::StrJoin(known, ", ")));
  }
}

}  // namespace bfio::plan
