#include "router/requests/resume_rights.h"

#include "common/base/rng.h"

namespace bfio::router {
namespace {

bool SameSecret(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

bool MayResume(const ClientRequest& request, const ClientRequest& resume) {
  return SameSecret(request.resume_token, resume.resume_token);
}

bool MayAbort(const ClientRequest& request, absl::string_view resume_token) {
  return SameSecret(request.resume_token, resume_token);
}

uint64_t SeedOfName(absl::string_view request_id) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : request_id) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return Mix64(hash);
}

}  // namespace bfio::router
