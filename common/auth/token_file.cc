#include "common/auth/token_file.h"

#include <sys/stat.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/byte_order_mark.h"
#include "common/base/clock.h"
#include "common/base/read_file.h"
#include "common/base/spdlog.h"
#include "common/base/status_macros.h"

namespace bfio {
namespace {

// Changes whenever the file is written or replaced; empty when there is no file.
std::string VersionOf(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return "";
  return absl::StrCat(info.st_ino, " ", info.st_size, " ", info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec,
                      " ", info.st_ctim.tv_sec, ".", info.st_ctim.tv_nsec);
}

absl::StatusOr<std::shared_ptr<const BearerTokens>> Load(const std::string& path) {
  BFIO_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, BearerTokens::kMaxFileBytes));
  BFIO_ASSIGN_OR_RETURN(BearerTokens tokens, BearerTokens::Parse(WithoutByteOrderMark(text), path));
  return std::make_shared<const BearerTokens>(std::move(tokens));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(std::string path) {
  // Taken before reading, so that a change during the read is detected at the next check.
  std::string version = VersionOf(path);
  BFIO_ASSIGN_OR_RETURN(auto tokens, Load(path));
  WarnIfWorldReadable(path);
  return std::unique_ptr<TokenFile>(new TokenFile(std::move(path), std::move(version), std::move(tokens)));
}

TokenFile::TokenFile(std::string path, std::string version, std::shared_ptr<const BearerTokens> tokens)
    : path_(std::move(path)),
      version_(std::move(version)),
      tokens_(std::move(tokens)),
      thread_([this] { Watch(); }) {}

TokenFile::~TokenFile() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

std::shared_ptr<const BearerTokens> TokenFile::Tokens() const {
  MutexLock lock(&mutex_);
  return tokens_;
}

void TokenFile::Watch() {
  for (;;) {
    {
      MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kCheckPeriod)) return;
    }
    std::string version = VersionOf(path_);
    if (version == version_) continue;
    auto tokens = Load(path_);
    if (!tokens.ok()) {
      // Retried at each check after any error, and logged once for each version of the file.
      if (version == reported_) continue;
      reported_ = std::move(version);
      spdlog::warn("cannot reload the tokens; the previous ones remain in use: {}",
                   std::string(tokens.status().message()));
      continue;
    }
    version_ = std::move(version);
    reported_.clear();
    WarnIfWorldReadable(path_);
    spdlog::info("{} tokens read from {}", (*tokens)->size(), path_);
    MutexLock lock(&mutex_);
    tokens_ = *std::move(tokens);
  }
}

absl::StatusOr<std::string> ReadTokenFile(const std::string& path) {
  BFIO_ASSIGN_OR_RETURN(std::string text, ReadFile(path, BearerTokens::kMaxFileBytes));
  const absl::string_view token = absl::StripAsciiWhitespace(text);
  const bool one_word = std::none_of(
      token.begin(), token.end(), [](char c) { return !absl::ascii_isgraph(static_cast<unsigned char>(c)); });
  // Others' servers have longer ones: a service account's of Kubernetes has about 1 KB.
  constexpr size_t kMostBytes = 8192;
  if (token.empty() || token.size() > kMostBytes || !one_word) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": must contain exactly one token, in one line"));
  }
  return std::string(token);
}

std::string ClientToken::Get() {
  MutexLock lock(&mutex_);
  if (MonotonicNow() < next_read_) return token_;
  next_read_ = MonotonicNow() + kReadPeriod;
  absl::StatusOr<std::string> token = ReadTokenFile(path_);
  const std::string error(token.status().message());
  if (token.ok()) token_ = *std::move(token);
  if (std::exchange(error_, error) != error && !error.empty()) spdlog::warn("{}", error);
  return token_;
}

void WarnIfWorldReadable(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && (info.st_mode & S_IROTH) != 0) {
    spdlog::warn("{} contains secrets and is readable by every user of this machine (chmod o-r)", path);
  }
}

}  // namespace bfio
