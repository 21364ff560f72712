#include "worker/engine/model/rope.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/quote.h"
#include "common/json/json_fields.h"

namespace bfio::worker {
namespace {

// Llama 3.1: wavelengths that fit into the training context many times are kept, those that do not fit once
// are stretched, and those between are interpolated.
double StretchLlama3(const RopeConfig& rope, double frequency) {
  const double wavelengths =
      static_cast<double>(rope.original_max_positions) * frequency / (2 * std::numbers::pi);
  if (wavelengths > rope.high_freq_factor) return frequency;
  if (wavelengths < rope.low_freq_factor) return frequency / rope.factor;
  const double keep = (wavelengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - keep) * frequency / rope.factor + keep * frequency;
}

using nlohmann::json;
using Kind = RopeConfig::Kind;

// Llama 3's theta is 5e5, Code Llama's 1e6, the largest seen 1e9.
constexpr double kMaxTheta = 1e12;
constexpr double kMaxFactor = 1e6;
constexpr int64_t kMaxOriginal = int64_t{1} << 32;

constexpr std::array<const char*, 9> kKnown = {"rope_type",
                                               "type",
                                               "rope_theta",
                                               "factor",
                                               "low_freq_factor",
                                               "high_freq_factor",
                                               "original_max_position_embeddings",
                                               "partial_rotary_factor",
                                               "attention_factor"};

// Rejects values other than 1: partial rotation and query scaling are not implemented.
void RefuseUnlessOne(JsonFields& fields, const char* name) {
  const json* const found = fields.Find(name);
  if (found != nullptr && *found != 1.0) {
    fields.Unsupported(name, absl::StrCat("is ", Shown(*found), "; only 1 is supported"));
  }
}

// Absent on an error, which is recorded in `fields`.
std::optional<Kind> ReadKind(JsonFields& fields) {
  const json* const newer = fields.Find("rope_type");
  const json* const older = fields.Find("type");
  // Versions of transformers differ in which of the two they read.
  if (newer != nullptr && older != nullptr && *newer != *older) {
    fields.Invalid("rope_type", absl::StrCat("is ", Shown(*newer), " and type ", Shown(*older)));
    return std::nullopt;
  }
  const json* const found = newer != nullptr ? newer : older;
  if (found == nullptr || *found == "default") return Kind::kDefault;
  if (*found == "linear") return Kind::kLinear;
  if (*found == "llama3") return Kind::kLlama3;
  fields.Unsupported(newer != nullptr ? "rope_type" : "type",
                     absl::StrCat("is ", Shown(*found), "; default, linear and llama3 are supported"));
  return std::nullopt;
}

double Required(JsonFields& fields, const char* name, double absent, double low, double high) {
  if (fields.Find(name) == nullptr) fields.Invalid(name, "is missing; this rope_type needs it");
  return fields.Number(name, absent, low, high);
}

void ReadDefault(JsonFields& fields) {
  for (const char* const name : {"factor", "low_freq_factor", "high_freq_factor"}) {
    const json* const found = fields.Find(name);
    if (found != nullptr && *found != 1.0) {
      fields.Invalid(name, absl::StrCat("is ", Shown(*found), "; rope_type 'default' does not support it"));
    }
  }
}

void ReadLlama3(JsonFields& fields, JsonFields& top, int64_t max_positions, RopeConfig& rope) {
  rope.low_freq_factor = Required(fields, "low_freq_factor", rope.low_freq_factor, 1e-6, kMaxFactor);
  rope.high_freq_factor = Required(fields, "high_freq_factor", rope.high_freq_factor, 1e-6, kMaxFactor);
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    fields.Invalid("high_freq_factor",
                   absl::StrCat("is ", rope.high_freq_factor, "; must be above low_freq_factor, ",
                                rope.low_freq_factor));
  }
  constexpr char kOriginal[] = "original_max_position_embeddings";
  rope.original_max_positions =
      fields.IntegerOrNull(kOriginal, max_positions, max_positions, 1, kMaxOriginal);
  if (top.Find(kOriginal) != nullptr) {
    const int64_t outer = top.Integer(kOriginal, 0, 1, kMaxOriginal);
    if (fields.Find(kOriginal) != nullptr && outer != rope.original_max_positions) {
      fields.Invalid(kOriginal,
                     absl::StrCat("is ", rope.original_max_positions, ", but ", outer, " at the top level"));
    }
    rope.original_max_positions = outer;
  }
}

void ReadObject(JsonFields& fields, JsonFields& top, int64_t max_positions, RopeConfig& rope) {
  RefuseUnlessOne(fields, "partial_rotary_factor");
  RefuseUnlessOne(fields, "attention_factor");
  if (fields.Find("rope_theta") != nullptr) {
    const double inner = fields.Number("rope_theta", rope.theta, 1, kMaxTheta);
    if (top.Find("rope_theta") != nullptr && inner != rope.theta) {
      fields.Invalid("rope_theta", absl::StrCat("is ", inner, ", but ", rope.theta, " at the top level"));
    }
    rope.theta = inner;
  }
  if (rope.kind == Kind::kDefault) return ReadDefault(fields);
  rope.factor = Required(fields, "factor", rope.factor, 1, kMaxFactor);
  if (rope.kind == Kind::kLlama3) ReadLlama3(fields, top, max_positions, rope);
}

}  // namespace

std::vector<float> InverseFrequencies(const RopeConfig& rope, int64_t head_dim) {
  std::vector<float> frequencies(head_dim / 2);
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    double frequency = std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    switch (rope.kind) {
      case RopeConfig::Kind::kDefault: break;
      case RopeConfig::Kind::kLinear: frequency /= rope.factor; break;
      case RopeConfig::Kind::kLlama3: frequency = StretchLlama3(rope, frequency); break;
    }
    frequencies[i] = static_cast<float>(frequency);
  }
  return frequencies;
}

RopeConfig ReadRopeConfig(const json& config, int64_t max_positions, absl::string_view where,
                          absl::Status* status) {
  JsonFields top(config, std::string(where), status);
  RopeConfig rope;
  RefuseUnlessOne(top, "partial_rotary_factor");
  if (top.Find("rope_theta") != nullptr) rope.theta = top.Number("rope_theta", rope.theta, 1, kMaxTheta);
  const json* const older = top.Find("rope_scaling");
  const json* const newer = top.Find("rope_parameters");
  if (older != nullptr && newer != nullptr && *older != *newer) {
    top.Invalid("rope_scaling", "and rope_parameters are both set and differ");
  }
  const char* const name = newer != nullptr ? "rope_parameters" : "rope_scaling";
  const json* const object = newer != nullptr ? newer : older;
  if (object == nullptr) return rope;
  if (!object->is_object()) {
    top.Invalid(name, absl::StrCat("is ", Shown(*object), "; must be an object"));
    return rope;
  }
  JsonFields fields(*object, absl::StrCat(where, name, "."), status);
  const std::optional<Kind> kind = ReadKind(fields);
  // Other kinds have other fields; the unknown kind is the error to report.
  if (!kind) return rope;
  rope.kind = *kind;
  for (const auto& [key, value] : object->items()) {
    if (value.is_null() || std::find(kKnown.begin(), kKnown.end(), key) != kKnown.end()) continue;
    top.Unsupported(name, absl::StrCat("has a field ", Quote(key), ", which is not supported"));
  }
  ReadObject(fields, top, max_positions, rope);
  return rope;
}

}  // namespace bfio::worker
