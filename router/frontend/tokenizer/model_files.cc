#include "router/frontend/tokenizer/model_files.h"

#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/auth/bearer_tokens.h"
#include "common/base/status_macros.h"
#include "common/json/json_reader.h"

namespace bfio::router {

namespace {

using nlohmann::json;

constexpr int64_t kMaxBytes = int64_t{256} << 20;

const std::string* Find(const TokenizerFiles& files, absl::string_view name) {
  for (const auto& [file, content] : files) {
    if (file == name) return &content;
  }
  return nullptr;
}

absl::StatusOr<std::string> ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (!in.good() && !in.eof()) return absl::NotFoundError(absl::StrCat(path.string(), " cannot be read"));
  return content;
}

// Whether a file with this name is part of a tokenizer: one that tokenizing requires (`needed`), or one with
// the tokenizer's settings.
bool IsTokenizerFile(absl::string_view name, bool& needed) {
  static constexpr absl::string_view kBeside[] = {
      "added_tokens.json", "chat_template.json",      "config.json",          "generation_config.json",
      "merges.txt",        "special_tokens_map.json", "tokenizer_config.json"};
  needed = name == "tokenizer.json" || name == "vocab.json" || absl::EndsWith(name, ".model") ||
           absl::EndsWith(name, ".tiktoken");
  return needed || absl::EndsWith(name, ".jinja") ||
         std::find(std::begin(kBeside), std::end(kBeside), name) != std::end(kBeside);
}

absl::StatusOr<TokenizerFiles> ReadTokenizerFiles(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> names;
  bool any_needed = false;
  const auto most = static_cast<uintmax_t>(kMaxBytes);
  uintmax_t bytes = 0;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    bool needed = false;
    std::error_code ignored;
    if (!IsTokenizerFile(name, needed) || !it->is_regular_file(ignored)) continue;
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

// 0 where the field is missing or is not an id.
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
  for (const char* field : {"torch_dtype", "dtype"}) {
    if (const auto type = config.find(field); type != config.end() && type->is_string())
      model.dtype = type->get<std::string>();
  }
  for (const json& name : config.value("architectures", json::array())) {
    if (name.is_string()) model.architectures.push_back(name.get<std::string>());
  }
}

void Append16(uint32_t value, std::string& out) {
  out.push_back(static_cast<char>(value));
  out.push_back(static_cast<char>(value >> 8));
}

void Append32(uint32_t value, std::string& out) {
  Append16(value, out);
  Append16(value >> 16, out);
}

// Appends the fields that a file's header and its directory entry have in common.
void AppendFacts(const std::string& name, const std::string& content, std::string& out) {
  // 1980-01-01 00:00, the earliest time of the format: a file's own time would change the archive's digest.
  constexpr uint32_t kTime = 0, kDate = 1 << 5 | 1;
  const uint32_t checksum =
      static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(content.data()), content.size()));
  Append16(20, out);  // version 2.0 suffices
  Append16(0, out);   // flags
  Append16(0, out);   // not compressed
  Append16(kTime, out);
  Append16(kDate, out);
  Append32(checksum, out);
  Append32(static_cast<uint32_t>(content.size()), out);
  Append32(static_cast<uint32_t>(content.size()), out);
  Append16(static_cast<uint32_t>(name.size()), out);
  Append16(0, out);  // no extra field
}

}  // namespace

absl::StatusOr<ModelFiles> LoadModelFiles(std::string directory) {
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  BFIO_ASSIGN_OR_RETURN(const TokenizerFiles files, ReadTokenizerFiles(directory));
  ModelFiles model;
  model.directory = std::move(directory);
  if (const std::string* config = Find(files, "config.json"); config != nullptr) {
    BFIO_ASSIGN_OR_RETURN(const json fields,
                          ReadJsonObject(*config, absl::StrCat(model.directory, "/config.json"), {},
                                         {"vocab_size", "bos_token_id", "pad_token_id", "eos_token_id",
                                          "model_type", "torch_dtype", "dtype", "architectures"}));
    ReadConfig(fields, model);
  }
  if (const std::string* tokenizer = Find(files, "tokenizer.json"); tokenizer != nullptr) {
    absl::StatusOr<TokenText> text = TokenText::Parse(*tokenizer);
    if (text.ok()) {
      model.text = std::make_shared<const TokenText>(*std::move(text));
    } else {
      model.why_no_text = absl::StrCat("tokenizer.json: ", text.status().message());
    }
  } else {
    model.why_no_text = "the model has no tokenizer.json";
  }
  model.archive = ZipArchive(files);
  const Sha256Digest digest = Sha256(model.archive);
  model.archive_sha256 =
      absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
  return model;
}

std::string ModelNameOf(absl::string_view directory) {
  const std::vector<absl::string_view> parts = absl::StrSplit(directory, '/', absl::SkipEmpty());
  return parts.empty() || parts.back() == "." || parts.back() == ".." ? "bfio" : std::string(parts.back());
}

std::string ZipArchive(const TokenizerFiles& files) {
  std::string archive, directory;
  for (const auto& [name, content] : files) {
    const auto offset = static_cast<uint32_t>(archive.size());
    Append32(0x04034b50, archive);
    AppendFacts(name, content, archive);
    archive += name;
    archive += content;
    Append32(0x02014b50, directory);
    Append16(20, directory);  // made by version 2.0
    AppendFacts(name, content, directory);
    Append16(0, directory);  // no comment
    Append16(0, directory);  // on this disk
    Append16(0, directory);  // internal attributes
    Append32(0, directory);  // external attributes
    Append32(offset, directory);
    directory += name;
  }
  const auto offset = static_cast<uint32_t>(archive.size());
  archive += directory;
  Append32(0x06054b50, archive);
  Append16(0, archive);  // this disk
  Append16(0, archive);  // disk of the directory
  Append16(static_cast<uint32_t>(files.size()), archive);
  Append16(static_cast<uint32_t>(files.size()), archive);
  Append32(static_cast<uint32_t>(directory.size()), archive);
  Append32(offset, archive);
  Append16(0, archive);  // no comment
  return archive;
}

}  // namespace bfio::router
