#include "common/json/json_reader.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/byte_order_mark.h"
#include "common/base/quote.h"
#include "common/base/status_macros.h"

namespace bfio {
namespace {

using nlohmann::json;

// The library holds a string several times while it reads it.

// The limit that the text exceeds; empty if it exceeds none.
std::string Excess(absl::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.bytes)
    return absl::StrCat("has ", text.size(), " bytes, more than the ", limits.bytes, " allowed");
  // The library treats a zero byte as the end of the text.
  if (text.find('\0') != absl::string_view::npos) return "has a zero byte in its JSON";
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) return absl::StrCat("is nested more than ", kMaxJsonDepth, " deep");
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == '"') {
      const size_t begin = i++;
      while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
      if (i - begin > limits.string_bytes)
        return absl::StrCat("has a string of more than ", limits.string_bytes, " bytes");
    }
  }
  return "";
}

// Removes the library's prefix "[json.exception.parse_error.101] " from its message.
std::string Reason(const char* what) {
  absl::string_view text = what;
  const size_t bracket = text.find("] ");
  if (bracket != absl::string_view::npos) text.remove_prefix(bracket + 2);
  return Quote(text);
}

class Builder final : public nlohmann::json_sax<json> {
 public:
  Builder(size_t max_values, JsonWanted wanted, OnJson on)
      : max_values_(max_values), wanted_(wanted), on_(on) {}

  absl::Status Parse(absl::string_view text) {
    if (!json::sax_parse(text.begin(), text.end(), this)) Fail("is not JSON");
    return status_;
  }

  bool null() override { return Add(json()); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return Open(json::object()); }
  bool start_array(std::size_t) override { return Open(json::array()); }
  bool key(string_t& name) override {
    if (!tree_.empty() && tree_.back()->contains(name))
      return Fail(absl::StrCat("gives ", Quote(name), " twice"));
    (tree_.empty() ? path_.names.back() : name_) = std::move(name);
    return true;
  }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    return Fail(absl::StrCat("is not JSON at byte ", position, ": ", Reason(error.what())));
  }

 private:
  // Ends the parse with an error.
  bool Fail(const std::string& fault) {
    status_.Update(absl::InvalidArgumentError(fault));
    return false;
  }
  template <typename T>
  bool Add(T&& value) {
    if (!tree_.empty()) return Put(std::forward<T>(value)) != nullptr;
    path_.kind = JsonPath::Kind::kScalar;
    if (!wanted_(path_)) return true;
    json built = std::forward<T>(value);
    return Pass(built);
  }
  bool Open(json empty) {
    const bool array = empty.is_array();
    if (!tree_.empty()) {
      json* const put = Put(std::move(empty));
      if (put != nullptr) tree_.push_back(put);
      return put != nullptr;
    }
    path_.kind = array ? JsonPath::Kind::kArray : JsonPath::Kind::kObject;
    if (wanted_(path_)) {
      root_ = std::move(empty);
      values_ = 1;
      tree_.push_back(&root_);
      return true;
    }
    arrays_.push_back(path_.in_array);
    path_.in_array = array;
    path_.names.emplace_back();
    return true;
  }
  bool Close() {
    if (tree_.empty()) {
      path_.names.pop_back();
      path_.in_array = arrays_.back();
      arrays_.pop_back();
      return true;
    }
    tree_.pop_back();
    return !tree_.empty() || Pass(root_);
  }
  // Adds to the container that is being built. Null: the limit is reached.
  json* Put(json value) {
    if (++values_ > max_values_) {
      Fail(absl::StrCat("has more than ", max_values_, " values"));
      return nullptr;
    }
    json& in = *tree_.back();
    return in.is_array() ? &in.emplace_back(std::move(value)) : &(in[name_] = std::move(value));
  }
  bool Pass(json& value) {
    status_ = on_(path_, value);
    return status_.ok();
  }

  const size_t max_values_;
  const JsonWanted wanted_;
  const OnJson on_;
  // The containers that are open and not built have a name each, of the member that is being read.
  JsonPath path_;
  std::vector<bool> arrays_;
  // The value that is being built, its open containers, the name of the next member, and the number of
  // values.
  json root_;
  std::vector<json*> tree_;
  std::string name_;
  size_t values_ = 0;
  absl::Status status_;
};

}  // namespace

bool JsonPath::Is(std::initializer_list<absl::string_view> wanted) const {
  return std::equal(
      names.begin(), names.end(), wanted.begin(), wanted.end(),
      [](absl::string_view name, absl::string_view want) { return want == "*" || name == want; });
}

absl::Status ReadJson(absl::string_view text, absl::string_view source, const JsonLimits& limits,
                      JsonWanted wanted, OnJson on) {
  const std::string excess = Excess(text, limits);
  const absl::Status status =
      excess.empty() ? Builder(limits.values, wanted, on).Parse(text) : absl::InvalidArgumentError(excess);
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(source, source.empty() ? "" : ": ", status.message()));
}

absl::StatusOr<json> ReadJsonObject(absl::string_view text, absl::string_view source,
                                    const JsonLimits& limits,
                                    std::initializer_list<absl::string_view> fields) {
  json object = json::object();
  const bool all = fields.size() == 0;
  const auto wanted = [&](const JsonPath& path) {
    if (all) return path.names.empty();
    return path.names.size() == 1 && std::find(fields.begin(), fields.end(), path.names[0]) != fields.end();
  };
  const auto keep = [&](JsonPath& path, json& value) {
    json& field = all ? object : object[path.names[0]];
    if (!all && !field.is_null())
      return absl::InvalidArgumentError(absl::StrCat("gives ", Quote(path.names[0]), " twice"));
    field = std::move(value);
    return absl::OkStatus();
  };
  BFIO_RETURN_IF_ERROR(ReadJson(text, source, limits, wanted, keep));
  // The library skips the mark.
  if (absl::StartsWith(absl::StripLeadingAsciiWhitespace(WithoutByteOrderMark(text)), "{")) return object;
  return absl::InvalidArgumentError(absl::StrCat(source, source.empty() ? "" : ": ", "is not a JSON object"));
}

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

std::string JsonText(const json& value, int indent) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

std::string JsonText(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string WithMembers(absl::string_view object,
                        const std::vector<std::pair<std::string, std::string>>& members) {
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
