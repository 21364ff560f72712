#include "router/app/election_flags.h"

#include <unistd.h>

#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/address.h"

ABSL_FLAG(
    std::string, election_etcd, "",
    "endpoints of etcd, http://HOST:PORT or https://HOST:PORT, separated by commas: of all routers with "
    "the same --election_key one leads and the others stand by, with the probes of --http_listen alone. "
    "Empty: no "
    "election");
ABSL_FLAG(std::string, election_key, "/bfio/router", "the key that the leader has in etcd");
ABSL_FLAG(
    std::string, election_name, "",
    "what standbys call this router when it leads; empty: --listen, with the machine's name for 0.0.0.0");
ABSL_FLAG(absl::Duration, election_ttl, absl::Seconds(10),
          "how long a leader that is gone stays leader, and one that reaches no etcd goes on; 2s to 1h");
ABSL_FLAG(std::string, election_tls_ca, "", "PEM file of the CAs of etcd's certificate");
ABSL_FLAG(std::string, election_tls_cert, "", "PEM file of this router's certificate for etcd");
ABSL_FLAG(std::string, election_tls_key, "", "PEM file of that certificate's key");

namespace bfio::router {
namespace {

std::string NameFor(const std::string& listen) {
  const absl::StatusOr<Address> address = ParseAddress(listen, /*port_may_be_0=*/true);
  if (!address.ok() || (address->host != "0.0.0.0" && address->host != "::")) return listen;
  char host[256] = "localhost";
  gethostname(host, sizeof(host) - 1);
  return Address{host, address->port}.ToString();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Election>> ElectionFromFlags(const std::string& listen) {
  ElectionOptions options;
  options.etcd.endpoints = absl::StrSplit(absl::GetFlag(FLAGS_election_etcd), ',', absl::SkipEmpty());
  options.etcd.ca = absl::GetFlag(FLAGS_election_tls_ca);
  options.etcd.cert = absl::GetFlag(FLAGS_election_tls_cert);
  options.etcd.key = absl::GetFlag(FLAGS_election_tls_key);
  if (options.etcd.endpoints.empty()) {
    if (options.etcd.ca.empty() && options.etcd.cert.empty() && options.etcd.key.empty()) return nullptr;
    return absl::InvalidArgumentError("--election_tls_*: there is no --election_etcd");
  }
  options.key = absl::GetFlag(FLAGS_election_key);
  options.ttl = absl::GetFlag(FLAGS_election_ttl);
  options.name = absl::GetFlag(FLAGS_election_name);
  if (options.name.empty()) options.name = NameFor(listen);
  auto election = Election::Create(std::move(options));
  if (election.ok()) return election;
  return absl::Status(election.status().code(), absl::StrCat("--election_*: ", election.status().message()));
}

}  // namespace bfio::router
