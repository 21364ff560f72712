#include "tests/unit/report/well_formed.h"

#include <algorithm>
#include <cstddef>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace bfio::report {
namespace {

bool IsNameCharacter(char c) {
  return absl::ascii_isalpha(c) || c == ':' || c == '-';
}

// Reads one tag's attributes off `text`, which then is empty or "/". By hand: std::regex recurses once per
// character, and path data are long.
std::string AttributesError(absl::string_view* text) {
  std::set<absl::string_view> seen;
  while (absl::ConsumePrefix(text, " ")) {
    const size_t equals = text->find("=\"");
    const size_t end = equals == absl::string_view::npos ? equals : text->find('"', equals + 2);
    if (end == absl::string_view::npos)
      return absl::StrCat("an attribute without a value: ", text->substr(0, 40));
    const absl::string_view name = text->substr(0, equals);
    if (!seen.insert(name).second) return absl::StrCat("attribute twice: ", name);
    if (name.empty() || !std::all_of(name.begin(), name.end(), IsNameCharacter)) {
      return absl::StrCat("odd attribute name: ", name);
    }
    text->remove_prefix(end + 1);
  }
  return "";
}

std::string EntityError(absl::string_view text) {
  for (size_t at = text.find('&'); at != absl::string_view::npos; at = text.find('&', at + 1)) {
    bool known = false;
    for (const char* entity : {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"}) {
      known = known || text.substr(at).substr(0, absl::string_view(entity).size()) == entity;
    }
    if (!known) return absl::StrCat("bare & at: ", text.substr(at, 20));
  }
  return "";
}

// Opens or closes one element. `tag` is what is between < and >.
std::string TagError(absl::string_view tag, std::vector<std::string>* open) {
  if (absl::StartsWith(tag, "/")) {
    if (open->empty() || open->back() != tag.substr(1)) return absl::StrCat("unexpected <", tag, ">");
    open->pop_back();
    return "";
  }
  const size_t length = tag.find_first_of(" /");
  if (length == 0 || tag.empty()) return absl::StrCat("no element name in <", tag, ">");
  open->emplace_back(tag.substr(0, length));
  tag.remove_prefix(std::min(length, tag.size()));
  if (std::string error = AttributesError(&tag); !error.empty()) return error;
  if (tag == "/") open->pop_back();
  return tag.empty() || tag == "/" ? "" : absl::StrCat("odd attributes: ", tag.substr(0, 40));
}

}  // namespace

std::string XmlError(absl::string_view xml) {
  if (std::string error = EntityError(xml); !error.empty()) return error;
  std::vector<std::string> open;
  bool root_closed = false;
  while (!xml.empty()) {
    const size_t begin = xml.find('<');
    if (open.empty() && xml.substr(0, begin).find_first_not_of(" \n") != absl::string_view::npos) {
      return "text outside of the root";
    }
    if (begin == absl::string_view::npos) break;
    if (open.empty() && root_closed) return "a second root";
    const size_t end = xml.find('>', begin);
    if (end == absl::string_view::npos) return "a tag does not end";
    std::string error = TagError(xml.substr(begin + 1, end - begin - 1), &open);
    if (!error.empty()) return error;
    root_closed = open.empty();
    xml.remove_prefix(end + 1);
  }
  return open.empty() ? "" : absl::StrCat("not closed: ", open.back());
}

std::vector<std::string> Svgs(absl::string_view html) {
  std::vector<std::string> svgs;
  constexpr absl::string_view kEnd = "</svg>";
  while (true) {
    const size_t begin = html.find("<svg");
    if (begin == absl::string_view::npos) return svgs;
    const size_t end = html.find(kEnd, begin);
    if (end == absl::string_view::npos) return svgs;
    svgs.emplace_back(html.substr(begin, end + kEnd.size() - begin));
    html.remove_prefix(end + kEnd.size());
  }
}

}  // namespace bfio::report
