#include "common/json/json_fields.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/quote.h"

namespace bfio {

using nlohmann::json;

std::string Shown(const json& value) {
  if (value.is_string()) return Quote(value.get_ref<const std::string&>());
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  return value.dump();
}

const json* JsonFields::Find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool JsonFields::IsNull(const char* name) const {
  const auto found = object_.find(name);
  return found != object_.end() && found->is_null();
}

int64_t JsonFields::Integer(const char* name, int64_t absent, int64_t low, int64_t high) {
  if (IsNull(name)) Invalid(name, "is null; must be an integer");
  return IntegerOrNull(name, absent, absent, low, high);
}

int64_t JsonFields::IntegerOrNull(const char* name, int64_t absent, int64_t missing, int64_t low,
                                  int64_t high) {
  const json* const found = Find(name);
  if (found == nullptr) return IsNull(name) ? missing : absent;
  if (!found->is_number_integer()) {
    Invalid(name, absl::StrCat("is ", Shown(*found), "; must be an integer"));
    return absent;
  }
  // Unsigned values beyond int64_t would wrap.
  const bool wraps = found->is_number_unsigned() &&
                     found->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const int64_t value = wraps ? 0 : found->get<int64_t>();
  if (wraps || value < low || value > high) {
    Invalid(name, absl::StrCat("is ", Shown(*found), "; must be between ", low, " and ", high));
    return absent;
  }
  return value;
}

double JsonFields::Number(const char* name, double absent, double low, double high) {
  const json* const found = Find(name);
  if (found == nullptr) {
    if (IsNull(name)) Invalid(name, "is null; must be a number");
    return absent;
  }
  if (!found->is_number()) {
    Invalid(name, absl::StrCat("is ", Shown(*found), "; must be a number"));
    return absent;
  }
  const double value = found->get<double>();
  if (value >= low && value <= high) return value;
  const std::string range =
      std::isinf(high) ? absl::StrCat("at least ", low) : absl::StrCat("between ", low, " and ", high);
  Invalid(name, absl::StrCat("is ", Shown(*found), "; must be ", range));
  return absent;
}

bool JsonFields::Boolean(const char* name, bool absent) {
  const json* const found = Find(name);
  if (found != nullptr && found->is_boolean()) return found->get<bool>();
  if (found != nullptr || IsNull(name)) {
    Invalid(name, absl::StrCat("is ", found == nullptr ? "null" : Shown(*found), "; must be true or false"));
  }
  return absent;
}

std::string JsonFields::String(const char* name, absl::string_view absent) {
  const json* const found = Find(name);
  if (found != nullptr && found->is_string()) return found->get<std::string>();
  if (found != nullptr || IsNull(name)) {
    Invalid(name, absl::StrCat("is ", found == nullptr ? "null" : Shown(*found), "; must be a string"));
  }
  return std::string(absent);
}

void JsonFields::Invalid(const char* name, absl::string_view fault) {
  status_->Update(absl::InvalidArgumentError(absl::StrCat(where_, name, " ", fault)));
}

void JsonFields::Unsupported(const char* name, absl::string_view fault) {
  status_->Update(absl::UnimplementedError(absl::StrCat(where_, name, " ", fault)));
}

}  // namespace bfio
