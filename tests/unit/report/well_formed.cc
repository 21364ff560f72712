#include "tests/unit/report/well_formed.h"

#include <cstddef>
#include <regex>
#include <set>

#include "absl/strings/str_cat.h"

namespace bfio::report {
namespace {

// Reads one tag's attributes off `text`, which then starts at '>' or '/>'.
std::string AttributesError(std::string* text) {
  static const std::regex attribute(R"re(^\s+([A-Za-z:_-]+)="([^"<]*)")re");
  std::set<std::string> seen;
  std::smatch match;
  while (std::regex_search(*text, match, attribute)) {
    if (!seen.insert(match[1]).second) return absl::StrCat("attribute twice: ", match[1].str());
    *text = match.suffix();
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
std::string TagError(std::string tag, std::vector<std::string>* open) {
  if (tag.starts_with('/')) {
    if (open->empty() || open->back() != tag.substr(1)) return absl::StrCat("unexpected <", tag, ">");
    open->pop_back();
    return "";
  }
  static const std::regex name("^[A-Za-z][A-Za-z0-9]*");
  std::smatch match;
  if (!std::regex_search(tag, match, name)) return absl::StrCat("no element name in <", tag, ">");
  open->push_back(match.str());
  std::string rest = match.suffix();
  if (std::string error = AttributesError(&rest); !error.empty()) return error;
  if (rest == "/") open->pop_back();
  return rest.empty() || rest == "/" ? "" : absl::StrCat("odd attributes: ", rest.substr(0, 40));
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
    std::string error = TagError(std::string(xml.substr(begin + 1, end - begin - 1)), &open);
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
