#include "router/frontend/tokenizer/model_files.h"

#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/auth/bearer_tokens.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "router/frontend/tokenizer/zip_archive.h"

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

}  // namespace

absl::StatusOr<ModelFiles> LoadModelFiles(std::string directory) {
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  BFIO_ASSIGN_OR_RETURN(const TokenizerFiles files, ReadTokenizerFiles(directory, kMaxBytes));
  return MakeModelFiles(std::move(directory), files);
}

absl::StatusOr<ModelFiles> MakeModelFiles(std::string directory, const TokenizerFiles& files) {
  ModelFiles model;
  model.directory = std::move(directory);
  if (const std::string* config = Find(files, "config.json"); config != nullptr) {
    const json parsed = json::parse(*config, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_object())
      return absl::InvalidArgumentError(absl::StrCat(model.directory, "/config.json is not a JSON object"));
    ReadConfig(parsed, model);
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

}  // namespace bfio::router
