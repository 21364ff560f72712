// Fields of JSON objects that people write by hand, with errors that say where.
//
// Purpose: every mistake is one line that names the field, also a misspelt one. Threads: any, no state.
#ifndef BFIO_CHAINS_PLAN_JSON_READER_H_
#define BFIO_CHAINS_PLAN_JSON_READER_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace bfio::plan {

// INVALID_ARGUMENT, naming `source`, for text that is no JSON object.
absl::StatusOr<nlohmann::json> ParseObject(absl::string_view text, absl::string_view source);

// One object; the first error is kept, and later calls give what they can.
class JsonReader {
 public:
  // `where` begins the messages: "pool.json: servers[3]". `object` must outlive the reader.
  JsonReader(const nlohmann::json& object, std::string where);

  bool Has(const char* name) const;
  // nullopt without the field, or where it is no finite number of at least `least`.
  std::optional<double> Number(const char* name, double least);
  // The same, whole and at most `most`.
  std::optional<int64_t> Whole(const char* name, int64_t least, int64_t most);
  std::optional<std::string> Text(const char* name);
  // As Number, and an error without the field.
  double NeededNumber(const char* name, double least);
  int64_t NeededWhole(const char* name, int64_t least, int64_t most);

  void Fail(const std::string& what);
  // An error for fields that are none of `known`.
  void AllowOnly(const std::vector<std::string>& known);
  const absl::Status& status() const { return status_; }

 private:
  const nlohmann::json& object_;
  std::string where_;
  absl::Status status_;
};

}  // namespace bfio::plan

#endif  // BFIO_CHAINS_PLAN_JSON_READER_H_
