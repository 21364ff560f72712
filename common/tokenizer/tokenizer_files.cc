#include "common/tokenizer/tokenizer_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace bfio {
namespace {

absl::StatusOr<std::string> ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (!in.good() && !in.eof()) return absl::NotFoundError(absl::StrCat(path.string(), " cannot be read"));
  return content;
}

}  // namespace

bool IsTokenizerFile(absl::string_view name, bool* needed) {
  static constexpr absl::string_view kBeside[] = {
      "added_tokens.json", "chat_template.json",      "config.json",          "generation_config.json",
      "merges.txt",        "special_tokens_map.json", "tokenizer_config.json"};
  const bool alone = name == "tokenizer.json" || name == "vocab.json" || absl::EndsWith(name, ".model") ||
                     absl::EndsWith(name, ".tiktoken");
  if (needed != nullptr) *needed = alone;
  return alone || absl::EndsWith(name, ".jinja") ||
         std::find(std::begin(kBeside), std::end(kBeside), name) != std::end(kBeside);
}

absl::StatusOr<TokenizerFiles> ReadTokenizerFiles(const std::string& directory, int64_t max_bytes) {
  std::error_code error;
  std::vector<std::string> names;
  bool any_needed = false;
  const auto most = static_cast<uintmax_t>(max_bytes);
  uintmax_t bytes = 0;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    bool needed = false;
    std::error_code ignored;
    if (!IsTokenizerFile(name, &needed) || !it->is_regular_file(ignored)) continue;
    bytes += std::min(it->file_size(ignored), most + 1);
    any_needed = any_needed || needed;
    names.push_back(name);
  }
  if (error) return absl::NotFoundError(absl::StrCat(directory, ": ", error.message()));
  if (!any_needed) return absl::NotFoundError(absl::StrCat(directory, " has no tokenizer.json"));
  if (bytes > most) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory, ": the tokenizer files exceed ", most >> 20, " MiB"));
  }
  std::sort(names.begin(), names.end());
  TokenizerFiles files;
  for (const std::string& name : names) {
    BFIO_ASSIGN_OR_RETURN(std::string content, ReadFile(std::filesystem::path(directory) / name));
    files.emplace_back(name, std::move(content));
  }
  return files;
}

}  // namespace bfio
