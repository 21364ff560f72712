#include "router/record/segment_files.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"

namespace bfio::record {

std::vector<SegmentFile> ListSegments(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path whole(path);
  const fs::path folder = whole.has_parent_path() ? whole.parent_path() : fs::path(".");
  const std::string prefix = whole.filename().string() + ".";
  std::vector<SegmentFile> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!absl::StartsWith(name, prefix)) continue;
    const std::string digits = name.substr(prefix.size());
    uint64_t number = 0;
    if (digits.size() < 6 || !std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) ||
        !absl::SimpleAtoi(digits, &number)) {
      continue;
    }
    std::error_code gone;
    const auto bytes = fs::file_size(it->path(), gone);
    if (!gone) found.push_back({path + "." + digits, number, static_cast<int64_t>(bytes)});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
  return found;
}

}  // namespace bfio::record
