// A tokens file that is read again when it changes.
//
// Purpose: tokens are added and taken away without a restart. A file that cannot be read or has a line that
// is no entry is refused as a whole, with one log line, and what was in force stays in force. Threads: a
// thread of its own looks at the file every kLookEvery; Check from any thread, without waiting for the file
// system.
#ifndef BFIO_COMMON_AUTH_TOKEN_FILE_H_
#define BFIO_COMMON_AUTH_TOKEN_FILE_H_

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/auth/bearer_tokens.h"
#include "common/base/mutex.h"

namespace bfio {

class TokenFile {
 public:
  static constexpr absl::Duration kLookEvery = absl::Milliseconds(500);

  // NOT_FOUND for a file that cannot be read, INVALID_ARGUMENT for one that is no tokens file.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(std::string path);
  ~TokenFile();

  struct Owner {
    BearerTokens::Verdict verdict = BearerTokens::Verdict::kUnknown;
    std::string name;
    Role role = Role::kRead;
  };
  Owner Check(absl::string_view token, absl::Time now) const;
  Owner CheckCertificate(const std::vector<std::string>& names, absl::Time now) const;

 private:
  TokenFile(std::string path, std::string version, std::shared_ptr<const BearerTokens> tokens);
  void Watch();
  std::shared_ptr<const BearerTokens> Tokens() const;

  const std::string path_;
  // Of the watching thread: what the file looked like when it was last read; when it could not be, and that
  // was told.
  std::string version_, told_;
  mutable Mutex mutex_;
  std::shared_ptr<const BearerTokens> tokens_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// A bearer token in a file of its own, as a client has it: its first line without surrounding blanks.
// NOT_FOUND, or INVALID_ARGUMENT when it holds no token or more than one line.
absl::StatusOr<std::string> ReadTokenFile(const std::string& path);

// One log line when users other than owner and group may read the file.
void WarnIfWorldReadable(const std::string& path);

}  // namespace bfio

#endif  // BFIO_COMMON_AUTH_TOKEN_FILE_H_
