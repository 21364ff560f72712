#include "tools/loadgen/run_document.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace bfio::loadgen {
namespace {

using Json = nlohmann::ordered_json;

// A result file has some 10 KB, and 1 KB for each rate of a sweep.
constexpr std::uintmax_t kLargestFile = 256u << 20;

double NumberOf(const Json& json) {
  return json.is_number() ? json.get<double>() : NAN;
}

}  // namespace

absl::StatusOr<RunDocument> RunDocument::Parse(absl::string_view text, std::string name) {
  Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return absl::InvalidArgumentError(absl::StrCat(name, " is not JSON"));
  if (!json.is_object() || !json.contains("requests_sent") || !json.contains("ttft_s")) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is not a result file of bfio_loadgen (--json writes one)"));
  }
  return RunDocument(std::make_shared<const Json>(std::move(json)), std::move(name));
}

absl::StatusOr<RunDocument> RunDocument::Read(const std::string& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", error.message()));
  if (size > kLargestFile) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", size, " bytes, the limit is ", kLargestFile));
  }
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  absl::StatusOr<RunDocument> run = Parse(text, path);
  if (run.ok()) run->set_name(std::filesystem::path(path).stem().string());
  return run;
}

const Json* RunDocument::Find(const std::string& path) const {
  // Parts of a path may be names from the file, so it may not be a valid JSON pointer.
  try {
    const Json::json_pointer pointer(path);
    return json_->contains(pointer) ? &json_->at(pointer) : nullptr;
  } catch (const Json::exception&) {
    return nullptr;
  }
}

double RunDocument::Number(const std::string& path) const {
  const Json* const found = Find(path);
  return found != nullptr ? NumberOf(*found) : NAN;
}

int64_t RunDocument::Count(const std::string& path) const {
  const double number = Number(path);
  // Larger doubles are not exact counts, and the conversion could be undefined.
  return std::abs(number) < 9e15 ? static_cast<int64_t>(number) : 0;
}

std::string RunDocument::Text(const std::string& path) const {
  const Json* const found = Find(path);
  return found != nullptr && found->is_string() ? found->get<std::string>() : "";
}

std::vector<std::pair<std::string, std::string>> RunDocument::Members(const std::string& path) const {
  std::vector<std::pair<std::string, std::string>> members;
  const Json* const found = Find(path);
  if (found == nullptr || !found->is_object()) return members;
  for (const auto& [key, value] : found->items()) {
    members.emplace_back(key, value.is_string() ? value.get<std::string>()
                                                : value.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return members;
}

}  // namespace bfio::loadgen
