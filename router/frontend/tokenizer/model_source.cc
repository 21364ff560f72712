#include "router/frontend/tokenizer/model_source.h"

#include <zlib.h>

#include <limits>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/auth/bearer_tokens.h"
#include "common/base/status_macros.h"
#include "common/json/json_reader.h"

namespace bfio::router {

ModelSource::~ModelSource() {
  std::thread last;
  {
    MutexLock lock(&mutex_);
    last = std::move(thread_);
  }
  if (last.joinable()) last.join();
}

void ModelSource::Take(const std::string& model, std::string directory, TokenizerFiles files,
                       std::function<void(const absl::Status&)> done) {
  {
    MutexLock lock(&mutex_);
    if (configured_ == nullptr && !converting_ && Find(model) == nullptr) {
      converting_ = true;
      // The previous thread has ended; its result could not be used.
      if (thread_.joinable()) thread_.join();
      thread_ = std::thread([this, model, directory = std::move(directory), files = std::move(files),
                             done = std::move(done)] { Convert(model, directory, files, done); });
      return;
    }
  }
  done(absl::OkStatus());
}

void ModelSource::Convert(const std::string& model, std::string directory, const TokenizerFiles& files,
                          const std::function<void(const absl::Status&)>& done) {
  absl::StatusOr<ModelFiles> made = MakeModelFiles(std::move(directory), files);
  {
    MutexLock lock(&mutex_);
    converting_ = false;
    if (made.ok()) {
      const bool first_is_served = !files_.empty() && files_.front().first == served_;
      if (files_.size() >= kMostModels) files_.erase(files_.begin() + (first_is_served ? 1 : 0));
      files_.emplace_back(model, std::make_shared<const ModelFiles>(*std::move(made)));
    }
  }
  done(made.status());
}

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
  BFIO_ASSIGN_OR_RETURN(const TokenizerFiles files, ReadTokenizerFiles(directory, kMaxBytes));
  return MakeModelFiles(std::move(directory), files);
}

absl::StatusOr<ModelFiles> MakeModelFiles(std::string directory, const TokenizerFiles& files) {
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

std::string ZipArchive(const std::vector<std::pair<std::string, std::string>>& files) {
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
