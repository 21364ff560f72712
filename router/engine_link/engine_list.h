// The present engines: those of --engines, of a file, behind DNS names and in pools of Kubernetes. The file
// is read, the names are resolved and the pools are asked for repeatedly. The file's present content replaces
// the earlier one. A new address of a name is used at once; an address is removed after kAnswersWithout
// consecutive answers without it, and that of a pool at once. A file that cannot be read or is invalid, a
// name that does not resolve and a pool that is not known, change nothing: no outage removes an engine. If a
// name has IPv4 addresses, its IPv6 addresses are not used, because they reach the same servers. Threads:
// one. Resolve blocks while the resolver does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/address.h"
#include "common/config/options.h"
#include "common/config/tls_files.h"

namespace bfio::router {

// The bootstrap server of Mooncake's connector (VLLM_MOONCAKE_BOOTSTRAP_PORT), and of SGLang behind Envoy
// (--disaggregation-bootstrap-port), unless set.
inline constexpr uint16_t kBootstrapPort = 8998;

// "vllm://HOST:PORT": an engine's server, its protocol, and the properties that it does not report.
// "vllm+dns://NAME:PORT": one server for each address of the name (of one family). "http://HOST:PORTS", with
// ports such as 8200-8207 or 8200,8202, and https:// with TLS: servers behind Envoy, whose ranks the router
// only chooses; a name stands for all its addresses. "k8s://NAMESPACE/POOL": those of an InferencePool. Pure.
// Threads: any.
struct EngineAddress {
  // "vllm", "sglang", "http".
  std::string protocol;
  Address server;
  // The host is a name, and each of its addresses is a server (engine_list.h).
  bool by_name = false;
  // "NAMESPACE/NAME": for an InferencePool, each of whose pods and ports is a server; by_name is set. Where
  // it is asked for, and the folder with the service account's ca.crt and token.
  std::string pool;
  Address api_server = {"kubernetes.default.svc", 443};
  std::string api_files = "/var/run/secrets/kubernetes.io/serviceaccount";
  // The barrier in which its ranks meet at every step, together with those of other servers with the same
  // barrier; empty: each rank steps independently.
  std::string barrier;
  // For barriers: most tokens of a rank's step, prompts and decodes (vLLM: max_num_batched_tokens, whose
  // default on large GPUs this is).
  int64_t token_budget = 8192;
  // `kv_bootstrap: HOST:PORT`: where it computes prompts for others with Mooncake's connector or is SGLang,
  // its bootstrap server; port 0: at its host, at the port that it reports (SGLang) or kBootstrapPort.
  Address kv_bootstrap;
  // A request runs on the data-parallel rank that it names (vLLM: always). Otherwise, for SGLang, the router
  // treats all ranks of the server as one.
  bool pinned = false;
  // For "http", which do not report it: requests that a rank runs at a time (vLLM: max_num_seqs; 0: as it
  // reports); whether it computes prompts for others, and the connector of its KV.
  int32_t slots = 0;
  bool hands_over = false;
  std::string kv_connector;
  // Where rank 0 publishes KV events and step metrics, and sends the former again, further ranks at the next
  // ports; 0: nowhere.
  int32_t kv_events = 0, step_metrics = 0, kv_replay = 0;
  // Its KV events are followed block by block; with http it says which tokens a prompt has (http_engine.h).
  bool exact_prefixes = false;
  // Empty: plain text. The server's certificate must be of `name`, by which it was found, or else of its
  // host.
  TlsFiles tls;
  std::string name;
  // Of the bearer token that each call presents; needs `tls`. Empty: none.
  std::string token_file;

  // As in the flag, without the settings: the engine's name in logs and worker ids.
  std::string ToString() const;
  bool operator==(const EngineAddress&) const = default;
};

// Each list has at most so many.
inline constexpr size_t kMostEngines = 4096;

// Addresses separated by commas, as in --engines, each at most once and all with the same protocol.
// INVALID_ARGUMENT with one line otherwise.
absl::StatusOr<std::vector<EngineAddress>> ParseEngines(const std::string& text);

struct EngineSource {
  // As given in the flag or in the file.
  std::vector<EngineAddress> engines;
  // Empty: no file.
  std::string file = {};

  bool empty() const { return engines.empty(); }
  // The list may change.
  bool watched() const;
};

// Adds the option `engines`: what ParseEngines reads; "file:PATH", a YAML file with this option alone; or, in
// config files, a list of entries `url: URL` with the settings of these servers: `barrier: NAME`,
// `token_budget: N`, `tls:` and `token_file:`, for sglang `pinned: true`, for http `slots: N`,
// `role: prefill|decode`, `kv_connector: NAME` (vLLM's NIXL connector unless given) and `step_metrics: PORT`,
// for all `kv_events: PORT`, `kv_replay: PORT` and `prefixes: text|exact`, for k8s `api_server: HOST:PORT`
// and `api_files: FOLDER`. Either all servers have a barrier or none. A file must exist and list an engine.
void AddEngines(OptionTable& table, EngineSource* source, absl::string_view help);

// IP addresses of a host; IPv6 without brackets.
using ResolveHost = std::function<absl::StatusOr<std::vector<std::string>>(const std::string& host)>;
absl::StatusOr<std::vector<std::string>> ResolveBySystem(const std::string& host);
// The servers of EngineAddress::pool (http/pod_watch.h).
using ResolvePool = std::function<absl::StatusOr<std::vector<Address>>(const EngineAddress& engine)>;

class EngineList {
 public:
  // How often the link calls Resolve.
  static constexpr absl::Duration kPeriod = absl::Seconds(2);
  // Number of consecutive answers without an address (10 s at that period) after which it is removed. Some
  // resolvers omit addresses at times, and a removed engine must drain before it can come back.
  static constexpr int kAnswersWithout = 5;

  EngineList(EngineSource source, ResolveHost resolve, ResolvePool resolve_pool = nullptr)
      : source_(std::move(source)), resolve_(std::move(resolve)), resolve_pool_(std::move(resolve_pool)) {}

  // The present engines: each server once, names replaced by addresses. A failure is logged once. A name that
  // resolves slowly delays those after it. If `stop` returns true between two names, the result is partial.
  std::vector<EngineAddress> Resolve(const std::function<bool()>& stop = [] { return false; });

 private:
  struct Known {
    // With an IP address.
    Address server;
    // Number of consecutive answers without it.
    int missing = 0;
  };

  void ReadSourceFile();
  // Logs an error of a file, a host or a pool when it changes.
  void LogOnce(const std::string& of, const absl::Status& status, absl::string_view what_then);
  // The servers of an engine with a name or a pool.
  std::vector<Address> Resolve(const EngineAddress& engine);

  EngineSource source_;
  const ResolveHost resolve_;
  const ResolvePool resolve_pool_;
  // By name and port, or pool.
  std::map<std::string, std::vector<Known>> known_;
  // By file, host and pool.
  std::map<std::string, std::string> errors_;
};

}  // namespace bfio::router
