// Typed fields of a JSON object. Reads fields with defaults and ranges and keeps the first error, so that a
// reader is a list of fields without error handling. Threads: used by one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace bfio {

class JsonFields {
 public:
  // Every message begins with `where`: "DIR/config.json: " or "DIR/config.json: rope_scaling.". REQUIRES:
  // `object` is a JSON object. `object` and `status`, which several readers may share, outlive this.
  JsonFields(const nlohmann::json& object, std::string where, absl::Status* status)
      : object_(object), where_(std::move(where)), status_(status) {}

  // The field, or null when it is absent or null.
  const nlohmann::json* Find(const char* name) const;
  bool IsNull(const char* name) const;

  // The field's value, or `absent` when it is missing; null is an error. Must be in [low, high].
  int64_t Integer(const char* name, int64_t absent, int64_t low, int64_t high);
  // As Integer, but null gives `missing`.
  int64_t IntegerOrNull(const char* name, int64_t absent, int64_t missing, int64_t low, int64_t high);
  double Number(const char* name, double absent, double low, double high);
  bool Boolean(const char* name, bool absent);
  std::string String(const char* name, absl::string_view absent);

  // Records an error unless there is one already.
  void Invalid(const char* name, absl::string_view fault);
  void Unsupported(const char* name, absl::string_view fault);

 private:
  const nlohmann::json& object_;
  const std::string where_;
  absl::Status* const status_;
};

// A value for use in a message: compact JSON of bounded length.
std::string Shown(const nlohmann::json& value);

}  // namespace bfio
