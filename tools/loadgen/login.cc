#include "tools/loadgen/login.h"

#include "absl/flags/flag.h"

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
