// Reads fields of hand-written JSON objects, with errors that name the position. Every mistake, a misspelt
// field included, is reported as one line that names the field. Threads: any, no state.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace bfio::plan {

// Reads one object. The first error is kept; later calls still return what they can.
class JsonReader {
 public:
  // `where` is the prefix of messages: "pool.json: servers[3]". `object` must outlive the reader.
  JsonReader(const nlohmann::json& object, std::string where);

  bool Has(const char* name) const;
  // nullopt if the field is absent, or not a finite number of at least `least`, which is an error.
  std::optional<double> Number(const char* name, double least);
  // The same for a whole number of at most `most`.
  std::optional<int64_t> Whole(const char* name, int64_t least, int64_t most);
  std::optional<std::string> Text(const char* name);
  // As Number, but an absent field is an error.
  double NeededNumber(const char* name, double least);
  int64_t NeededWhole(const char* name, int64_t least, int64_t most);

  void Fail(const std::string& what);
  // Reports fields that are not in `known` as errors.
  void AllowOnly(const std::vector<std::string>& known);
  const absl::Status& status() const { return status_; }

 private:
  const nlohmann::json& object_;
  std::string where_;
  absl::Status status_;
};

}  // namespace bfio::plan
