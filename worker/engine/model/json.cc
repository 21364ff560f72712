#include "worker/engine/model/json.h"

#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/engine/model/quote.h"

namespace bfio::worker {
namespace {

using nlohmann::json;

// Real config.json files have a few kilobytes and depth 3. A parsed tree takes up to about 100 bytes per byte
// of text.
constexpr size_t kMaxDocumentBytes = 1 << 20;
constexpr int kMaxDepth = 32;

constexpr char kZeroByte[] = "has a zero byte in its JSON";

// The JSON library treats a zero byte as the end of the text.
bool HasZeroByte(absl::string_view text) {
  return text.find('\0') != absl::string_view::npos;
}

// Removes the library's prefix "[json.exception.parse_error.101] " from its message.
std::string Reason(const char* what) {
  absl::string_view text = what;
  const size_t bracket = text.find("] ");
  if (bracket != absl::string_view::npos) text.remove_prefix(bracket + 2);
  return Quote(text);
}

}  // namespace

absl::StatusOr<json> ParseJsonObject(absl::string_view text, absl::string_view path) {
  const auto fail = [&](const std::string& fault) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", fault));
  };
  if (text.size() > kMaxDocumentBytes) {
    return fail(absl::StrCat("has ", text.size(), " bytes, more than the ", kMaxDocumentBytes, " allowed"));
  }
  if (HasZeroByte(text)) return fail(kZeroByte);
  std::string fault;
  std::vector<std::set<std::string>> fields(kMaxDepth + 2);
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (!fault.empty()) return false;
    if (depth > kMaxDepth) {
      fault = absl::StrCat("is nested more than ", kMaxDepth, " deep");
      return false;
    }
    if (event == json::parse_event_t::object_start) fields[depth + 1].clear();
    if (event == json::parse_event_t::key) {
      const auto& name = parsed.get_ref<const std::string&>();
      if (!fields[depth].insert(name).second) fault = absl::StrCat("gives ", Quote(name), " twice");
    }
    return fault.empty();
  };
  json document;
  try {
    document = json::parse(text.begin(), text.end(), watch);
  } catch (const json::exception& error) {
    if (fault.empty()) fault = absl::StrCat("is not JSON: ", Reason(error.what()));
  }
  if (!fault.empty()) return fail(fault);
  if (!document.is_object()) return fail("is not a JSON object");
  return document;
}

std::string JsonEvents::Parse(absl::string_view text) {
  if (HasZeroByte(text)) return kZeroByte;
  const bool parsed = json::sax_parse(text.begin(), text.end(), this);
  if (!parsed && fault_.empty()) fault_ = "is not JSON";
  return fault_;
}

bool JsonEvents::parse_error(std::size_t position, const std::string&,
                             const nlohmann::detail::exception& error) {
  return Fail(absl::StrCat("is not JSON at byte ", position, ": ", Reason(error.what())));
}

bool JsonEvents::Unexpected(absl::string_view what) {
  return Fail(absl::StrCat("has ", what, " where none belongs", Where()));
}

}  // namespace bfio::worker
