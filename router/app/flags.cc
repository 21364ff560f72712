#include "router/app/flags.h"

#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/address.h"
#include "common/base/status_macros.h"
#include "router/app/engines.h"
#include "router/frontend/tokenizer/model_files.h"

namespace bfio::router {
namespace {

const Within kTimeout(absl::Milliseconds(1), absl::Hours(24));
const Within kTime(absl::ZeroDuration(), absl::Hours(24));
// Share of --request_memory_mb that prompts of waiting requests may use; the rest is for replays.
constexpr double kWaitingShare = 2.0 / 3;

absl::StatusOr<ClientApis> ParseClientApis(const std::string& text) {
  ClientApis apis{false, false, false};
  for (const absl::string_view name : absl::StrSplit(text, ',')) {
    if (name != "bfio" && name != "vllm" && name != "sglang")
      return absl::InvalidArgumentError("must be a comma-separated list of bfio, vllm and sglang");
    (name == "bfio" ? apis.bfio : name == "vllm" ? apis.vllm : apis.sglang) = true;
  }
  if (apis.vllm && apis.sglang) {
    return absl::InvalidArgumentError(
        "must not have both vllm and sglang: gateways detect the protocol of a port and could find either");
  }
  return apis;
}

void AddPorts(OptionTable& table, RouterOptions& o) {
  table.Add("listen", &o.listen,
            "HOST:PORT of the client API, and of the worker link if --worker_listen is empty; port 0 picks a "
            "free port");
  table.Add("worker_listen", &o.worker_listen,
            "HOST:PORT of the worker link; empty: the port of --listen, allowed only without --client_tls, "
            "--client_tokens and --worker_tls");
  table.AddParsed("client_apis", &o.client_apis, "bfio,vllm",
                  "APIs at --listen, comma-separated: bfio (bfio.v1.Inference), and for gateways either vllm "
                  "(vllm.grpc.engine.VllmEngine) or sglang (sglang.grpc.scheduler.SglangScheduler)",
                  ParseClientApis);
  table.Add(
      "picker_listen", &o.picker_listen,
      "HOST:PORT at which Envoy, or a gateway built on it, asks for the engine of each HTTP request "
      "(ext_proc, as an endpoint picker of the Gateway API Inference Extension), with the TLS files and "
      "tokens of the client API; needs --engines=http://..; empty: disabled");
  table.Add("tenant_header", &o.tenant_header,
            "request header that names the tenant at --picker_listen; the route must remove a client's own");
  table.Add("admin_listen", &o.admin_listen, "HOST:PORT of the admin API; port 0 picks a free port");
  table.Add("http_listen", &o.http_listen,
            "HOST:PORT of the live page, /metrics, /healthz and /readyz, with the TLS files and tokens of "
            "the admin API; empty: disabled");
  table.AddParsed(
      "client_tls", &o.client_tls, "",
      "TLS of the client API: cert=FILE,key=FILE,ca=FILE (PEM): the router's certificate and its key; with "
      "ca, clients must present a certificate that one of these CAs signed. Empty: no TLS",
      ParseTlsFiles);
  table.AddParsed("worker_tls", &o.worker_tls, "",
                  "TLS of the worker link, as --client_tls; with ca, workers must present a certificate",
                  ParseTlsFiles);
  table.AddParsed("admin_tls", &o.admin_tls, "",
                  "TLS of the admin API and of --http_listen, as --client_tls; with ca, operators must "
                  "present a certificate",
                  ParseTlsFiles);
  table.Add("client_tokens", &o.client_tokens,
            "file of the client API's bearer tokens, one 'TENANT sha256:HEX|token:TEXT [expires=DATE]' per "
            "line; empty: no token is required");
  table.Add("admin_tokens", &o.admin_tokens,
            "file of the operators' bearer tokens for the admin API, as --client_tokens; empty: no token is "
            "required");
  table.Add("resume_key_file", &o.resume_key_file,
            "file of keys for the client API's resume tickets, one per line, 32 to 512 characters. The first "
            "key signs, all keys verify. Use the same file for every router that may take over from this "
            "one. Empty: after a restart, resumed requests that no worker holds count as new requests");
  table.Add("bind_worker_id", &o.bind_worker_id,
            "refuse workers whose --worker_id is not in their certificate (DNS name, or else common name); "
            "needs --worker_tls with ca=FILE");
  table.Add("insecure", &o.insecure,
            "allow ports that other machines can reach without TLS or without authentication");
}

absl::StatusOr<std::vector<std::string>> ParseModels(const std::string& text) {
  std::vector<std::string> models = absl::StrSplit(text, ',', absl::SkipEmpty());
  for (const std::string& model : models) {
    if (model.size() < 8 || model.size() > 64 ||
        model.find_first_not_of("0123456789abcdef") != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat("'", model,
                                                     "' must have 8 to 64 lower-case hexadecimal digits; "
                                                     "workers log their model's digest when they start"));
    }
  }
  return models;
}

void AddGroups(OptionTable& table, RouterSettings& settings) {
  RouterOptions& o = settings.router;
  table.Add("tokenizer", &o.tokenizer,
            "directory with the model's tokenizer.json and config.json, which the vllm and sglang APIs send "
            "to gateways and need for stop strings; empty: none");
  table.Add("served_model_name", &o.served_model_name,
            "the model's name in the vllm and sglang APIs and in metrics; empty: the last part of "
            "--tokenizer, or bfio");
  table.Add("min_ranks|workers", &o.workers, Within(1, 4096),
            "number of ranks that must connect before a group serves for the first time; ranks that join or "
            "leave later re-form the group");
  table.Add("groups", &o.groups, Within(1, GroupSet::kMaxGroups),
            "number of groups of --min_ranks ranks that must be complete before the router is ready; workers "
            "without --group are assigned to these groups; workers with --group may form more groups");
  AddEngines(
      table, &o.engines,
      "engines to route to, comma-separated: http://HOST:PORTS or https, servers behind Envoy "
      "(--picker_listen), with PORTS such as 8200-8207 or 8200,8202; vllm://HOST:PORT, an unmodified vLLM "
      "gRPC server; "
      "sglang://HOST:PORT, an SGLang gRPC server; vllm+dns://NAME:PORT or sglang+dns://NAME:PORT, a server "
      "at each address of the DNS name; k8s://NAMESPACE/POOL, as http, the ready pods of an InferencePool. "
      "In --config also a list of entries with url and settings: slots "
      "(http: max_num_seqs), barrier (a name: ranks with the same one synchronize in every step, as with "
      "mixture-of-experts models; otherwise each rank steps independently), role (http: prefill or decode), "
      "kv_connector (http, with role), token_budget, kv_events, kv_replay, prefixes, step_metrics, pinned, "
      "tls, token_file. Or file:PATH, a file with such "
      "a list. Names and that file are read again every 2 s");
  table.AddParsed("models", &o.models, "",
                  "models that workers may have, comma-separated: the first 8 to 64 hexadecimal digits of "
                  "the model's digest, which workers log when they start. Workers with another model are "
                  "refused and retry. Empty: any model",
                  ParseModels);
  table.AddChoice<std::string>(
      "coupling", &settings.coupling, {{"auto", "auto"}, {"barrier", "barrier"}, {"none", "none"}},
      "barrier: ranks synchronize in every step; none: each rank steps independently, and --policy is by "
      "default least_work with --engines, otherwise jffc; auto: none for --engines without a barrier and "
      "for chains of servers, otherwise barrier");
  table.Add("step_timeout", &o.step_timeout, kTimeout,
            "a rank that takes longer than this to reach a step's barrier, or to form the barrier of a new "
            "epoch, counts as failed");
  table.Add("restart_settle", &o.restart_settle, kTime,
            "after a restart, how long to wait for workers that hold requests before planning without them");
  table.Add("drain_timeout", &o.drain_timeout, kTimeout, "how long accepted requests may run after SIGTERM");
}

// NAME or NAME:KEY=VALUE,...
absl::StatusOr<core::PolicySetting> ParsePolicy(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  core::PolicySetting policy{parts.first, {}};
  OptionTable items;
  items.Add("objective", &policy.options.objective, "");
  items.Add("horizon", &policy.options.horizon, Within(0, 500), "");
  items.Add("wait_ratio", &policy.options.wait_ratio, Within(core::kLeastWaitRatio, core::kMostWaitRatio),
            "");
  BFIO_RETURN_IF_ERROR(items.ReadItems(parts.second));
  return policy;
}

void AddDecisions(OptionTable& table, RouterOptions& o) {
  table.AddParsed(
      "policy", &o.policy, o.policy.name,
      "placement policy: see the list above. Settings may follow the name, as in "
      "bf_io:objective=paper,horizon=20: objective of bf_io, square (squared deviation from the "
      "mean load, with a weight on waiting time) or paper (J of the BF-IO paper); horizon of "
      "bf_io and br_h, the number of steps to look ahead with --lookahead (0..500; 0); wait_ratio "
      "of bf_io_auto while requests wait for slots (1..100; 1.15), the allowed 99th percentile of "
      "waiting times as a multiple of that of first come, first served: a larger ratio balances "
      "better",
      ParsePolicy);
  table.Add("lookahead", &o.lookahead, "predictor of completions for the policy: see the list above");
  table.AddChoice<core::PlanMode>(
      "plan_mode", &o.plan_mode,
      {{"pipelined", core::PlanMode::kPipelined}, {"lockstep", core::PlanMode::kLockstep}},
      "pipelined: the plan made from the reports of step k is applied in step k+2, so that no worker waits "
      "for the router; lockstep: workers wait for the plan of each step");
  table.AddChoice<bool>(
      "hand_over", &o.hands_over_all, {{"by_cost", false}, {"all", true}},
      "disaggregated prefill: by_cost leaves prompts to the rank that decodes if it computes "
      "them sooner, because they are short or cached there, or prefill servers are busy; "
      "all: every prompt is handed over");
  table.AddScaled("decide_budget_ms", absl::ToDoubleMilliseconds(o.decide_budget), Within(0, 60'000),
                  "time limit of a decision's search in milliseconds; at the limit the best plan so far is "
                  "used. 0: no limit",
                  [&o](double ms) { o.decide_budget = absl::Milliseconds(ms); });
  table.Add("decision_log", &o.decision_log,
            "PATH of the decision log: every decision and its inputs, in files PATH.000001, PATH.000002, "
            "..., for bfio_sim replay. Empty: no log");
  table.AddScaled("decision_log_mb", static_cast<double>(o.decision_log_bytes >> 20), Within(1, 1 << 20),
                  "maximum size of the decision log in MiB; the oldest files are removed",
                  [&o](double mb) { o.decision_log_bytes = static_cast<int64_t>(mb * (1 << 20)); });
}

void AddLimits(OptionTable& table, RouterSettings& settings) {
  RouterOptions& o = settings.router;
  table.Add(
      "max_waiting", &o.max_waiting, Within(1, 1'000'000),
      "maximum number of requests in the waiting pool; further requests are refused with RESOURCE_EXHAUSTED");
  table.Add(
      "max_queue_time", &o.max_queue_time, kTime,
      "how long a request may wait for a worker before it fails with RESOURCE_EXHAUSTED, or with UNAVAILABLE "
      "while no rank serves; it no longer applies once a worker has accepted the request. Batches, "
      "and workers that load a large model, need more. 0: no limit");
  table.Add("max_prompt_tokens", &o.limits.max_prompt_tokens, "longest prompt accepted, in tokens");
  table.Add("max_new_tokens", &o.limits.max_new_tokens, "largest max_new_tokens accepted");
  table.AddScaled("request_memory_mb",
                  static_cast<double>((o.max_waiting_bytes + o.replay_budget_bytes) >> 20),
                  Within(1, 1 << 20),
                  "memory for the tokens of requests in MiB: two thirds for prompts of waiting requests "
                  "(when full, further requests are refused), one third for prompts and delivered tokens "
                  "that are kept for replays and resumes",
                  [&o](double mb) {
                    o.max_waiting_bytes = static_cast<int64_t>(mb * (1 << 20) * kWaitingShare);
                    o.replay_budget_bytes = static_cast<int64_t>(mb * (1 << 20)) - o.max_waiting_bytes;
                  });
  table.Add("client_timeout", &o.client_timeout, kTimeout,
            "how long the router and the workers keep a resumable request, running or ended, for its client "
            "to resume; also how long a client may leave tokens unread before it is disconnected");
  table.AddParsed(
      "tenant_limits", &o.tenant_limits, "",
      "limits of tenants, TENANT:rps=N,tps=N,concurrent=N,priority=N,ttft=S;...: requests per second, tokens "
      "per second, concurrent requests, highest priority, and the objective for the first token in seconds "
      "of requests without one; TENANT * is each tenant that is not listed",
      ParseTenantLimits);
  table.AddParsed(
      "admission", &settings.admission, "none",
      "which requests may enter a worker's KV memory: none (each request reserves its prompt and "
      "max_new_tokens; the default without --engines), kv_feasible (while memory suffices at every future "
      "time with probability 0.99, as --lookahead predicts; kv_feasible:confidence=P for another "
      "probability), mc_sf (the same, shortest request first; mc_sf:most=K: no younger request goes before "
      "one that has waited K steps, by default 256; mc_sf:error=E: lengths differ from predictions by at "
      "most the share E), protection:alpha=A (while at most the share 1 - A is in use; protection:alpha=0.05 "
      "is the default with --engines, because engines preempt requests "
      "themselves). Alone or appended with +, when requests leave the waiting pool: wait or nested_wait (in "
      "batches; :tokens=N,most=K)",
      core::ParseAdmission);
}

void AddElection(OptionTable& table, ElectionOptions& o) {
  table.Add("election_etcd", &o.etcd.endpoints,
            "etcd endpoints for the leader election, http://HOST:PORT or https://HOST:PORT, comma-separated: "
            "of all routers with the same election_key one leads; the others stand by and serve only the "
            "probes and /metrics of --http_listen. Empty: no election");
  table.Add("election_key", &o.key, "etcd key that the leader holds");
  table.Add("election_ttl", &o.ttl, Within(absl::Seconds(2), absl::Hours(1)),
            "duration of the leader's etcd lease: how long a failed leader blocks the next one, and how long "
            "a leader continues without etcd");
  table.AddParsed("election_tls", &o.etcd.tls, "",
                  "TLS to etcd: cert=FILE,key=FILE,ca=FILE (PEM): ca verifies etcd's certificate; cert and "
                  "key are this router's client certificate, if etcd requires one",
                  ParseTlsFiles);
}

// The name of this router, which standbys log while it leads.
std::string NameFor(const std::string& listen) {
  const absl::StatusOr<Address> address = ParseAddress(listen, /*port_may_be_0=*/true);
  if (!address.ok() || (address->host != "0.0.0.0" && address->host != "::")) return listen;
  char host[256] = "localhost";
  gethostname(host, sizeof(host) - 1);
  return Address{host, address->port}.ToString();
}

// The share of an engine's KV memory that stays free for the growth of its requests (docs/results.md, "KV
// memory that is short").
constexpr double kFreeShareOfEngines = 0.05;

// An engine allocates KV memory as outputs grow, and preempts when it runs out. Reservations of
// max_new_tokens, which gateways set to the rest of the context, would leave its slots empty.
void SetAdmission(const OptionTable& table, RouterSettings& settings) {
  RouterOptions& o = settings.router;
  o.admission = settings.admission.kv;
  o.wait = settings.admission.wait;
  if (table.given("admission") || o.engines.empty()) return;
  o.admission.kind = core::KvAdmissionOptions::Kind::kProtection;
  o.admission.alpha = kFreeShareOfEngines;
}

// REQUIRES: plan_mode, policy and wait are set, and group_kind has the meaning of "auto".
absl::Status SetCoupling(const OptionTable& table, RouterSettings& settings) {
  RouterOptions& o = settings.router;
  if (!o.engines.empty()) {
    if (settings.coupling == "barrier")
      return absl::InvalidArgumentError(
          "--coupling=barrier is for bfio_worker only, not for --engines; if the engines' ranks synchronize "
          "in every step, give them a barrier in the list `engines` of --config");
    const bool coupled = !o.engines.engines.front().barrier.empty();
    if (coupled && settings.coupling == "none")
      return absl::InvalidArgumentError(
          "--coupling=none contradicts the barrier of the engines; remove one of them");
    o.group_kind = coupled ? core::GroupKind::kCoupled : core::GroupKind::kIndependent;
  }
  if (settings.coupling == "barrier") o.group_kind = core::GroupKind::kBarrier;
  if (settings.coupling == "none") o.group_kind = core::GroupKind::kIndependent;
  o.limits.name_prefixes = !o.engines.empty();
  if (o.group_kind == core::GroupKind::kBarrier) return absl::OkStatus();
  if (o.plan_mode == core::PlanMode::kLockstep) {
    return absl::InvalidArgumentError(
        "--plan_mode=lockstep needs --coupling=barrier: ranks that step independently do not wait for plans");
  }
  if (o.wait.kind != core::WaitAdmissionOptions::Kind::kNone) {
    return absl::InvalidArgumentError(
        "--admission=wait and nested_wait need --coupling=barrier: they start batches in a common step");
  }
  // jffc is for chains, which differ in speed and do not slow down with the requests that they hold. A step
  // of an engine takes longer with each request, and computes only what its prefix cache does not have.
  if (!table.given("policy") && o.group_kind == core::GroupKind::kIndependent)
    o.policy.name = o.engines.empty() ? "jffc" : "least_work";
  return absl::OkStatus();
}

}  // namespace

void AddRouterOptions(OptionTable& table, RouterSettings& settings) {
  AddPorts(table, settings.router);
  AddGroups(table, settings);
  AddDecisions(table, settings.router);
  AddLimits(table, settings);
  AddElection(table, settings.election);
  table.Add(
      "check_config", &settings.check_config,
      "check all settings, ask every engine of --engines what it has, print a line for each rank and each "
      "fault, and end: with 0 if nothing is wrong, otherwise with 1, or with 2 for a wrong setting");
  table.Add("log_level", &settings.log_level,
            "lowest level that is logged: trace, debug, info, warning or error");
  table.Add("log_format", &settings.log_format, "text or json");
  table.OnlyInConfig({"decision_log_mb", "election_key", "election_ttl"});
  table.Group("Further flags", {"client_apis", "client_timeout", "decision_log", "decision_log_mb",
                                "election_key", "election_tls", "election_ttl", "log_format", "log_level",
                                "max_new_tokens", "max_prompt_tokens", "policy", "request_memory_mb",
                                "resume_key_file", "step_timeout", "tenant_header"});
  table.Group("Own workers", {"bind_worker_id", "coupling", "groups", "models", "restart_settle",
                              "worker_listen", "worker_tls"});
  table.Group("Experimental", {"admission", "chains", "decide_budget_ms", "lookahead", "plan_mode"});
}

absl::Status FinishRouterOptions(const OptionTable& table, RouterSettings& settings) {
  // Failing to bind a default port is not an error, so that two routers can run on one machine.
  settings.router.http_may_fail = !table.given("http_listen");
  SetAdmission(table, settings);
  settings.election.name = NameFor(settings.router.listen);
  if (settings.router.served_model_name.empty() && !settings.router.tokenizer.empty())
    settings.router.served_model_name = ModelNameOf(settings.router.tokenizer);
  if (settings.election.etcd.endpoints.empty() && settings.election.etcd.tls.enabled())
    return absl::InvalidArgumentError("--election_tls needs --election_etcd");
  const auto& engines = settings.router.engines.engines;
  if (!settings.router.picker_listen.empty() && (engines.empty() || engines.front().protocol != "http"))
    return absl::InvalidArgumentError("--picker_listen needs --engines=http://HOST:PORTS");
  BFIO_RETURN_IF_ERROR(CheckLogins(engines));
  return SetCoupling(table, settings);
}

}  // namespace bfio::router
