// The file of bearer tokens, and the header that carries one.
#include "common/auth/bearer_tokens.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text = bfio::fuzz::Text(data, size);
  const auto tokens = bfio::BearerTokens::Parse(text, "fuzz");
  const absl::string_view presented = bfio::BearerToken(text);
  if (!tokens.ok()) {
    bfio::fuzz::Check(tokens.status().message().substr(0, 5) == "fuzz:", "an error names the file");
    return 0;
  }
  bfio::fuzz::Check(tokens->size() >= 1 && tokens->size() <= bfio::BearerTokens::kMaxTokens,
                    "bounded, not empty");
  const auto owner = tokens->Find(presented, absl::UnixEpoch());
  bfio::fuzz::Check(owner.verdict != bfio::BearerTokens::Verdict::kUnknown || owner.name.empty(),
                    "an unknown token has no owner");
  return 0;
}
