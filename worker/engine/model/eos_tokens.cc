#include "worker/engine/model/eos_tokens.h"

#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/engine/model/json.h"

namespace bfio::worker {
namespace {

using nlohmann::json;

constexpr char kName[] = "eos_token_id";

}  // namespace

std::vector<int32_t> ReadEosTokens(JsonFields& fields, const std::vector<int32_t>& absent, int64_t vocab) {
  if (fields.IsNull(kName)) return {};
  const json* const found = fields.Find(kName);
  if (found == nullptr) return absent;
  std::set<int32_t> ids;
  const auto add = [&](const json& id) {
    if (id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(vocab)) {
      ids.insert(id.get<int32_t>());
    } else {
      fields.Invalid(kName, absl::StrCat("has ", Shown(id), "; token ids must be from 0 to ", vocab - 1));
    }
  };
  if (found->is_array()) {
    for (const json& id : *found) add(id);
  } else {
    add(*found);
  }
  return {ids.begin(), ids.end()};
}

absl::StatusOr<std::vector<int32_t>> ParseGenerationEosTokens(absl::string_view text, absl::string_view name,
                                                              int64_t vocab) {
  BFIO_ASSIGN_OR_RETURN(const json document, ParseJsonObject(text, name));
  absl::Status status;
  JsonFields fields(document, absl::StrCat(name, ": "), &status);
  std::vector<int32_t> ids = ReadEosTokens(fields, {}, vocab);
  if (!status.ok()) return status;
  return ids;
}

}  // namespace bfio::worker
