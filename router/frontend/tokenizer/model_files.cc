#include "router/frontend/tokenizer/model_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/auth/bearer_tokens.h"
#include "nlohmann/json.hpp"
#include "router/frontend/tokenizer/zip_archive.h"

namespace bfio::router {
namespace {

using nlohmann::json;

constexpr uintmax_t kMaxBytes = uintmax_t{256} << 20;

// Files without which nobody can tokenize, and those that say how.
bool IsTokenizer(absl::string_view name) {
  return name == "tokenizer.json" || name == "vocab.json" || absl::EndsWith(name, ".model") ||
         absl::EndsWith(name, ".tiktoken");
}
bool IsBesideTokenizer(absl::string_view name) {
  static constexpr absl::string_view kNames[] = {
      "added_tokens.json", "chat_template.json",      "config.json",          "generation_config.json",
      "merges.txt",        "special_tokens_map.json", "tokenizer_config.json"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) ||
         absl::EndsWith(name, ".jinja");
}

absl::StatusOr<std::string> ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (!in.good() && !in.eof()) return absl::NotFoundError(absl::StrCat(path.string(), " cannot be read"));
  return content;
}

using Files = std::vector<std::pair<std::string, std::string>>;

// By name.
absl::StatusOr<Files> ReadFiles(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> names;
  bool tokenizer = false;
  uintmax_t bytes = 0;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!IsTokenizer(name) && !IsBesideTokenizer(name)) continue;
    std::error_code ignored;
    if (!it->is_regular_file(ignored)) continue;
    const uintmax_t size = it->file_size(ignored);
    bytes += std::min(size, kMaxBytes);
    tokenizer = tokenizer || IsTokenizer(name);
    names.push_back(name);
  }
  if (error) return absl::NotFoundError(absl::StrCat(directory, ": ", error.message()));
  if (!tokenizer) return absl::NotFoundError(absl::StrCat(directory, " has no tokenizer.json"));
  if (bytes > kMaxBytes)
    return absl::InvalidArgumentError(absl::StrCat(directory, ": the tokenizer's files are above 256 MiB"));
  std::sort(names.begin(), names.end());
  Files files;
  for (const std::string& name : names) {
    absl::StatusOr<std::string> content = ReadFile(std::filesystem::path(directory) / name);
    if (!content.ok()) return content.status();
    files.emplace_back(name, *std::move(content));
  }
  return files;
}

const std::string* Find(const Files& files, absl::string_view name) {
  for (const auto& [file, content] : files) {
    if (file == name) return &content;
  }
  return nullptr;
}

// 0 where there is none, and where it is no id.
int32_t IdOf(const json& config, const char* field) {
  const auto it = config.find(field);
  if (it == config.end() || !it->is_number_unsigned()) return 0;
  const auto id = it->get<uint64_t>();
  return id > std::numeric_limits<int32_t>::max() ? 0 : static_cast<int32_t>(id);
}

void ReadConfig(const json& config, ModelFiles& model) {
  model.vocab_size = static_cast<uint32_t>(IdOf(config, "vocab_size"));
  model.bos_token_id = IdOf(config, "bos_token_id");
  model.pad_token_id = IdOf(config, "pad_token_id");
  const json eos = config.value("eos_token_id", json());
  for (const json& id : eos.is_array() ? eos : json::array({eos})) {
    if (id.is_number_unsigned() && id.get<uint64_t>() <= std::numeric_limits<int32_t>::max())
      model.eos_token_ids.push_back(id.get<int32_t>());
  }
  if (const auto type = config.find("model_type"); type != config.end() && type->is_string())
    model.model_type = type->get<std::string>();
  for (const json& name : config.value("architectures", json::array())) {
    if (name.is_string()) model.architectures.push_back(name.get<std::string>());
  }
}

}  // namespace

absl::StatusOr<ModelFiles> LoadModelFiles(std::string directory) {
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  const absl::StatusOr<Files> files = ReadFiles(directory);
  if (!files.ok()) return files.status();
  ModelFiles model;
  model.directory = std::move(directory);
  if (const std::string* config = Find(*files, "config.json"); config != nullptr) {
    const json parsed = json::parse(*config, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_object())
      return absl::InvalidArgumentError(absl::StrCat(model.directory, "/config.json is no JSON object"));
    ReadConfig(parsed, model);
  }
  if (const std::string* tokenizer = Find(*files, "tokenizer.json"); tokenizer != nullptr) {
    absl::StatusOr<TokenText> text = TokenText::Parse(*tokenizer);
    if (text.ok()) {
      model.text = std::make_shared<const TokenText>(*std::move(text));
    } else {
      model.why_no_text = absl::StrCat("tokenizer.json: ", text.status().message());
    }
  } else {
    model.why_no_text = "there is no tokenizer.json";
  }
  model.archive = ZipArchive(*files);
  const Sha256Digest digest = Sha256(model.archive);
  model.archive_sha256 =
      absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
  return model;
}

}  // namespace bfio::router
