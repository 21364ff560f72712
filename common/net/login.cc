#include "common/net/login.h"

#include "absl/strings/str_cat.h"
#include "common/auth/token_file.h"
#include "common/base/annotated.h"
#include "common/base/status_macros.h"
#include "common/net/exposure.h"

namespace bfio {

absl::StatusOr<Login> MakeLogin(const std::string& address, absl::string_view api, const TlsFiles& tls,
                                const std::string& token_file) {
  const std::string tls_flag = absl::StrCat(api, "_tls");
  BFIO_RETURN_IF_ERROR(CheckTlsFiles(tls, tls_flag, TlsEnd::kClient));
  if (tls.enabled() && !address.empty()) {
    if (auto target = ParseTarget(address, /*tls=*/true); !target.ok()) return target.status();
  }
  Login login;
  if (!token_file.empty()) {
    BFIO_ASSIGN_OR_RETURN(const Target router, ParseTarget(address));
    if (!tls.enabled() && !IsLoopback(router)) {
      return absl::InvalidArgumentError(absl::StrCat("--", api, "_token_file: the token would go to ",
                                                     address, " unencrypted; give --", tls_flag, "=ca=FILE"));
    }
    BFIO_ASSIGN_OR_RETURN(login.token,
                          Annotated(absl::StrCat("--", api, "_token_file"), ReadTokenFile(token_file)));
    WarnIfWorldReadable(token_file);
  }
  login.credentials = ChannelCredentials(tls);
  return login;
}

void Login::Present(grpc::ClientContext& context) const {
  if (!token.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", token));
}

}  // namespace bfio
