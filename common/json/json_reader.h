// JSON from outside: checkpoints, traces, tokenizers, etcd, requests. The text is bounded in size, depth and
// length of strings before the JSON library sees it, and a tree holds only the members that are wanted, of
// bounded number. Neither reading nor destroying recurses further than kMaxJsonDepth. Threads: pure
// functions.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace bfio {

inline constexpr int kMaxJsonDepth = 32;

struct JsonLimits {
  // Of the text. Configurations have a few kilobytes.
  size_t bytes = 1 << 20;
  // Values and containers of one tree; each takes about 100 bytes.
  size_t values = 1 << 16;
  // Of one string.
  size_t string_bytes = 4 << 20;
};

// Where a value is: the names that lead to it, empty for the elements of arrays. The last one is its own.
struct JsonPath {
  std::vector<std::string> names;
  bool in_array = false;
  // What the value is.
  enum class Kind { kScalar, kArray, kObject } kind = Kind::kScalar;

  // Whether these are the names; "*" stands for any.
  bool Is(std::initializer_list<absl::string_view> wanted) const;
};

using JsonWanted = absl::FunctionRef<bool(const JsonPath& path)>;
using OnJson = absl::FunctionRef<absl::Status(JsonPath& path, nlohmann::json& value)>;

// Builds each value that is `wanted`, passes it to `on`, and drops it; inside of a value that is not, others
// may be. INVALID_ARGUMENT: not JSON, beyond a limit, or a name twice in an object that is built; other
// errors are from `on`. Messages begin with `source` and a colon, if it is not empty.
absl::Status ReadJson(absl::string_view text, absl::string_view source, const JsonLimits& limits,
                      JsonWanted wanted, OnJson on);

// An object with these fields of the text, or all if there are none. Errors as above, and for other values
// than objects.
absl::StatusOr<nlohmann::json> ReadJsonObject(absl::string_view text, absl::string_view source,
                                              const JsonLimits& limits = {},
                                              std::initializer_list<absl::string_view> fields = {});

// As JSON on one line, or indented by so many spaces. Bytes that are not UTF-8 are replaced: texts of peers
// may have any. Programs write JSON with it, because each file that calls the library's own instantiates it.
std::string JsonText(const nlohmann::json& value, int indent = -1);
std::string JsonText(const nlohmann::ordered_json& value, int indent = -1);

// Changes members of a JSON object in its text: whatever else it says stays as it is, byte for byte, the
// order of its members included. Threads: pure function.

// The object with these members, given by name and value (JSON), instead of those of these names at its top.
// An empty value only removes. REQUIRES: ReadJsonObject has read the text.
std::string WithMembers(absl::string_view object,
                        const std::vector<std::pair<std::string, std::string>>& members);

}  // namespace bfio
