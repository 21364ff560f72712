#include "tools/loadgen/login.h"

#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "common/auth/token_file.h"
#include "common/net/address.h"
#include "common/net/exposure.h"
#include "common/net/tls.h"

ABSL_FLAG(std::string, client_tls_ca, "",
          "client API: PEM file of the CAs of the router's certificate; empty: plain text");
ABSL_FLAG(std::string, client_tls_cert, "",
          "client API: PEM file of the generator's certificate, where it is asked for");
ABSL_FLAG(std::string, client_tls_key, "", "client API: PEM file of that certificate's key");
ABSL_FLAG(std::string, client_token_file, "",
          "client API: file with the bearer token, where one is asked for");
ABSL_FLAG(std::string, admin_tls_ca, "",
          "admin API: PEM file of the CAs of the router's certificate; empty: plain text");
ABSL_FLAG(std::string, admin_tls_cert, "",
          "admin API: PEM file of the generator's certificate, where it is asked for");
ABSL_FLAG(std::string, admin_tls_key, "", "admin API: PEM file of that certificate's key");
ABSL_FLAG(std::string, admin_token_file, "", "admin API: file with the bearer token, where one is asked for");

namespace bfio::loadgen {
namespace {

absl::StatusOr<Login> MakeLogin(const std::string& address, absl::string_view api, const TlsFiles& tls,
                                const std::string& token_file) {
  const std::string tls_flags = absl::StrCat(api, "_tls");
  if (absl::Status status = CheckTlsFiles(tls, tls_flags, TlsEnd::kClient); !status.ok()) return status;
  Login login;
  if (!token_file.empty()) {
    const absl::StatusOr<Address> router = ParseAddress(address);
    if (!router.ok()) return router.status();
    if (!tls.enabled() && !IsLoopback(*router)) {
      return absl::InvalidArgumentError(absl::StrCat("--", api, "_token_file: the token would go to ",
                                                     router->host, " unencrypted; give --", tls_flags,
                                                     "_ca"));
    }
    absl::StatusOr<std::string> token = ReadTokenFile(token_file);
    if (!token.ok()) {
      return absl::Status(token.status().code(),
                          absl::StrCat("--", api, "_token_file: ", token.status().message()));
    }
    login.token = *std::move(token);
  }
  login.credentials = ChannelCredentials(tls);
  return login;
}

}  // namespace

void Login::Present(grpc::ClientContext& context) const {
  if (!token.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", token));
}

absl::StatusOr<Login> ClientLogin(const std::string& address) {
  return MakeLogin(address, "client",
                   {absl::GetFlag(FLAGS_client_tls_cert), absl::GetFlag(FLAGS_client_tls_key),
                    absl::GetFlag(FLAGS_client_tls_ca)},
                   absl::GetFlag(FLAGS_client_token_file));
}

absl::StatusOr<Login> AdminLogin(const std::string& address) {
  return MakeLogin(address, "admin",
                   {absl::GetFlag(FLAGS_admin_tls_cert), absl::GetFlag(FLAGS_admin_tls_key),
                    absl::GetFlag(FLAGS_admin_tls_ca)},
                   absl::GetFlag(FLAGS_admin_token_file));
}

}  // namespace bfio::loadgen
