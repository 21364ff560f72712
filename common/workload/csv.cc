#include "common/workload/csv.h"

#include "absl/strings/ascii.h"

namespace bfio {
namespace {

// Takes the quoted field at the start of `rest`, including its closing quote.
bool TakeQuoted(absl::string_view& rest, std::string& field) {
  field.clear();
  for (size_t i = 1; i < rest.size(); ++i) {
    if (rest[i] != '"') {
      field.push_back(rest[i]);
    } else if (i + 1 < rest.size() && rest[i + 1] == '"') {
      field.push_back(rest[i++]);
    } else {
      rest = absl::StripLeadingAsciiWhitespace(rest.substr(i + 1));
      return rest.empty() || rest[0] == ',';
    }
  }
  return false;
}

}  // namespace

bool SplitCsvLine(absl::string_view line, std::vector<std::string>& fields) {
  size_t count = 0;
  absl::string_view rest = line;
  for (;;) {
    if (fields.size() <= count) fields.emplace_back();
    std::string& field = fields[count++];
    rest = absl::StripLeadingAsciiWhitespace(rest);
    if (!rest.empty() && rest[0] == '"') {
      if (!TakeQuoted(rest, field)) return false;
    } else {
      const size_t comma = rest.find(',');
      const absl::string_view text = absl::StripTrailingAsciiWhitespace(rest.substr(0, comma));
      field.assign(text.data(), text.size());
      rest = comma == absl::string_view::npos ? absl::string_view() : rest.substr(comma);
    }
    if (rest.empty()) break;
    rest.remove_prefix(1);
  }
  fields.resize(count);
  return true;
}

}  // namespace bfio
