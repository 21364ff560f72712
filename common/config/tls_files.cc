#include "common/config/tls_files.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_split.h"

namespace bfio {

absl::StatusOr<TlsFiles> ParseTlsFiles(absl::string_view text) {
  TlsFiles files;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    std::string* const file = pair.first == "cert"  ? &files.cert
                              : pair.first == "key" ? &files.key
                              : pair.first == "ca"  ? &files.ca
                                                    : nullptr;
    if (file == nullptr || pair.second.empty() || !file->empty()) {
      return absl::InvalidArgumentError(
          "must be cert=FILE,key=FILE,ca=FILE or some of these, each at most once");
    }
    *file = std::string(pair.second);
  }
  return files;
}

}  // namespace bfio
