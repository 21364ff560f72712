#include "router/engine_link/http/metrics_text.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace bfio::router {
namespace {

// Reads `{a="x",b="y"}` at the start of `rest` and removes it; false: malformed.
bool TakeLabels(absl::string_view& rest, MetricSample& sample) {
  rest.remove_prefix(1);
  while (true) {
    rest = absl::StripLeadingAsciiWhitespace(rest);
    if (!rest.empty() && rest.front() == '}') return rest.remove_prefix(1), true;
    const size_t equals = rest.find("=\"");
    if (equals == absl::string_view::npos) return false;
    const absl::string_view name = rest.substr(0, equals);
    rest.remove_prefix(equals + 2);
    size_t end = 0;
    while (end < rest.size() && rest[end] != '"') end += rest[end] == '\\' ? 2 : 1;
    if (end >= rest.size()) return false;
    sample.labels.emplace_back(name, rest.substr(0, end));
    rest.remove_prefix(end + 1);
    if (!rest.empty() && rest.front() == ',') rest.remove_prefix(1);
  }
}

}  // namespace

absl::string_view MetricSample::label(absl::string_view wanted) const {
  for (const auto& [name, value] : labels) {
    if (name == wanted) return value;
  }
  return {};
}

void ReadMetrics(absl::string_view text, absl::string_view prefix,
                 absl::FunctionRef<void(const MetricSample&)> on) {
  MetricSample sample;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StartsWith(line, prefix)) continue;
    const size_t end = line.find_first_of("{ ");
    if (end == absl::string_view::npos) continue;
    sample.name = line.substr(0, end);
    sample.labels.clear();
    absl::string_view rest = line.substr(end);
    if (rest.front() == '{' && !TakeLabels(rest, sample)) continue;
    // A timestamp may follow.
    const std::vector<absl::string_view> parts = absl::StrSplit(rest, ' ', absl::SkipWhitespace());
    if (!parts.empty() && absl::SimpleAtod(parts.front(), &sample.value)) on(sample);
  }
}

}  // namespace bfio::router
