#include "common/json/json_members.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace bfio {
namespace {

// After the string that begins at `i`.
size_t EndOfString(absl::string_view text, size_t i) {
  for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\' ? 1 : 0;
  return std::min(i + 1, text.size());
}

// Its name, without escapes.
std::string NameOf(absl::string_view member) {
  const nlohmann::json name =
      nlohmann::json::parse(member.substr(0, EndOfString(member, 0)), nullptr, /*allow_exceptions=*/false);
  return name.is_string() ? name.get<std::string>() : "";
}

}  // namespace

std::string WithMembers(absl::string_view object,
                        const std::vector<std::pair<absl::string_view, std::string>>& members) {
  std::string out;
  out.reserve(object.size() + 256);
  const auto add = [&out](absl::string_view member) {
    absl::StrAppend(&out, out.empty() ? "{" : ",", member);
  };
  const size_t begin = std::min(object.find('{'), object.size() - 1) + 1;
  const size_t end = std::min(object.rfind('}'), object.size());
  int depth = 0;
  for (size_t i = begin, from = begin; i <= end && i <= object.size();) {
    const char c = i == end ? ',' : object[i];
    if (c == '"') {
      i = EndOfString(object, i);
      continue;
    }
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    ++i;
    if (c != ',' || depth > 0) continue;
    const absl::string_view member = absl::StripAsciiWhitespace(object.substr(from, i - 1 - from));
    from = i;
    if (member.empty()) continue;
    const std::string name = NameOf(member);
    if (std::none_of(members.begin(), members.end(), [&](const auto& one) { return one.first == name; }))
      add(member);
  }
  for (const auto& [name, value] : members) {
    if (!value.empty()) add(absl::StrCat("\"", name, "\":", value));
  }
  return out.empty() ? "{}" : out + "}";
}

}  // namespace bfio
