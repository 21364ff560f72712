#include "router/app/security_flags.h"

#include "absl/flags/flag.h"

// Each link has its prefix, at both of its ends: --client_tls_* here are the router's end of what
// --client_tls_* of bfio_loadgen are the other end of.
ABSL_FLAG(
    std::string, worker_listen, "",
    "HOST:PORT of the worker link; empty: on --listen, which is only for a link as open as the client API");
ABSL_FLAG(std::string, client_tls_cert, "",
          "client API: PEM file of the router's certificate; empty: plain text");
ABSL_FLAG(std::string, client_tls_key, "", "client API: PEM file of that certificate's key");
ABSL_FLAG(std::string, client_tls_ca, "",
          "client API: PEM file of the CAs whose certificates clients must show; empty: none is asked for");
ABSL_FLAG(
    std::string, client_tokens, "",
    "client API: file of bearer tokens, lines 'TENANT sha256:HEX|token:TEXT [expires=DATE]'; empty: none are "
    "asked for");
ABSL_FLAG(
    std::string, resume_key_file, "",
    "client API: file of keys, one a line of 32 to 512 characters, that resume_tickets are signed with (the "
    "first) and verified; the same for every router that may follow this one. Empty: after a restart resumed "
    "requests that nobody holds count like any other");
ABSL_FLAG(std::string, worker_tls_cert, "",
          "worker link: PEM file of the router's certificate; empty: plain text");
ABSL_FLAG(std::string, worker_tls_key, "", "worker link: PEM file of that certificate's key");
ABSL_FLAG(std::string, worker_tls_ca, "",
          "worker link: PEM file of the CAs whose certificates workers must show");
ABSL_FLAG(bool, bind_worker_id, false,
          "worker link: a worker may only have the --worker_id that its certificate names (DNS name, or else "
          "common "
          "name)");
ABSL_FLAG(std::string, admin_tls_cert, "",
          "admin API: PEM file of the router's certificate; empty: plain text");
ABSL_FLAG(std::string, admin_tls_key, "", "admin API: PEM file of that certificate's key");
ABSL_FLAG(std::string, admin_tls_ca, "",
          "admin API: PEM file of the CAs whose certificates operators must show; empty: none is asked for");
ABSL_FLAG(std::string, admin_tokens, "",
          "admin API: file of operators' bearer tokens, as --client_tokens; empty: none are asked for");
ABSL_FLAG(bool, insecure, false,
          "listen where other machines can connect without encryption, or without asking who calls");

namespace bfio::router {

void ReadSecurityFlags(RouterOptions& options) {
  options.worker_listen = absl::GetFlag(FLAGS_worker_listen);
  options.client_tls = {absl::GetFlag(FLAGS_client_tls_cert), absl::GetFlag(FLAGS_client_tls_key),
                        absl::GetFlag(FLAGS_client_tls_ca)};
  options.client_tokens = absl::GetFlag(FLAGS_client_tokens);
  options.resume_key_file = absl::GetFlag(FLAGS_resume_key_file);
  options.worker_tls = {absl::GetFlag(FLAGS_worker_tls_cert), absl::GetFlag(FLAGS_worker_tls_key),
                        absl::GetFlag(FLAGS_worker_tls_ca)};
  options.bind_worker_id = absl::GetFlag(FLAGS_bind_worker_id);
  options.admin_tls = {absl::GetFlag(FLAGS_admin_tls_cert), absl::GetFlag(FLAGS_admin_tls_key),
                       absl::GetFlag(FLAGS_admin_tls_ca)};
  options.admin_tokens = absl::GetFlag(FLAGS_admin_tokens);
  options.insecure = absl::GetFlag(FLAGS_insecure);
}

}  // namespace bfio::router
