// A tokens file that is reloaded when it changes. Tokens are added and removed without a restart. A file that
// cannot be read or has an invalid line is rejected as a whole, with one log line, and the previous entries
// stay in force. Threads: a thread of this object checks the file every kCheckPeriod; Find may be called from
// any thread and does not access the file system.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/auth/bearer_tokens.h"
#include "common/base/mutex.h"

namespace bfio {

class TokenFile {
 public:
  static constexpr absl::Duration kCheckPeriod = absl::Milliseconds(500);

  // NOT_FOUND: the file cannot be read; INVALID_ARGUMENT: it is not a tokens file.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(std::string path);
  ~TokenFile();

  // Of BearerTokens.
  BearerTokens::Owner Find(absl::string_view token, absl::Time now) const {
    return Tokens()->Find(token, now);
  }
  BearerTokens::Owner FindCertificate(const std::vector<std::string>& names, absl::Time now) const {
    return Tokens()->FindCertificate(names, now);
  }

 private:
  TokenFile(std::string path, std::string version, std::shared_ptr<const BearerTokens> tokens);
  void Watch();
  std::shared_ptr<const BearerTokens> Tokens() const;

  const std::string path_;
  // Used only by the watching thread: the file's version at the last successful read, and the version whose
  // read failed and was logged.
  std::string version_, reported_;
  mutable Mutex mutex_;
  std::shared_ptr<const BearerTokens> tokens_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Reads a client's bearer token from its file: the first line without surrounding blanks. NOT_FOUND, or
// INVALID_ARGUMENT when the file has no token or more than one line.
absl::StatusOr<std::string> ReadTokenFile(const std::string& path);

// A client's bearer token, from a file that may be replaced (ReadTokenFile). An unusable file is logged and
// leaves the last token in use. Threads: any; Get may read the file.
class ClientToken {
 public:
  static constexpr absl::Duration kReadPeriod = absl::Seconds(1);

  explicit ClientToken(std::string path) : path_(std::move(path)) {}
  // Empty: the file has never been usable.
  std::string Get();

 private:
  const std::string path_;
  Mutex mutex_;
  absl::Time next_read_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::string token_ ABSL_GUARDED_BY(mutex_), error_ ABSL_GUARDED_BY(mutex_);
};

// Logs one warning when users other than owner and group may read the file.
void WarnIfWorldReadable(const std::string& path);

}  // namespace bfio
