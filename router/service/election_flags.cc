#include "router/service/election_flags.h"

#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

ABSL_FLAG(
    std::string, election_etcd, "",
    "endpoints of etcd, http://HOST:PORT or https://HOST:PORT, separated by commas: of all routers with "
    "the same --election_key one leads and the others stand by, without ports. Empty: no election");
ABSL_FLAG(std::string, election_key, "/bfio/router", "the key that the leader has in etcd");
ABSL_FLAG(absl::Duration, election_ttl, absl::Seconds(3),
          "how long a leader that is gone stays leader, and one that reaches no etcd goes on; 2s to 1h");
ABSL_FLAG(std::string, election_tls_ca, "", "PEM file of the CAs of etcd's certificate");
ABSL_FLAG(std::string, election_tls_cert, "", "PEM file of this router's certificate for etcd");
ABSL_FLAG(std::string, election_tls_key, "", "PEM file of that certificate's key");

namespace bfio::router {

absl::StatusOr<std::unique_ptr<Election>> ElectionFromFlags(const std::string& name) {
  ElectionOptions options;
  options.etcd.endpoints = absl::StrSplit(absl::GetFlag(FLAGS_election_etcd), ',', absl::SkipEmpty());
  if (options.etcd.endpoints.empty()) return nullptr;
  options.etcd.ca = absl::GetFlag(FLAGS_election_tls_ca);
  options.etcd.cert = absl::GetFlag(FLAGS_election_tls_cert);
  options.etcd.key = absl::GetFlag(FLAGS_election_tls_key);
  options.key = absl::GetFlag(FLAGS_election_key);
  options.ttl = absl::GetFlag(FLAGS_election_ttl);
  options.name = name;
  auto election = Election::Create(std::move(options));
  if (election.ok()) return election;
  return absl::Status(election.status().code(), absl::StrCat("--election_*: ", election.status().message()));
}

}  // namespace bfio::router
