#include "router/app/flags.h"

#include <unistd.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/address.h"
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
      return absl::InvalidArgumentError("must be of bfio, vllm and sglang, separated by commas");
    (name == "bfio" ? apis.bfio : name == "vllm" ? apis.vllm : apis.sglang) = true;
  }
  if (apis.vllm && apis.sglang) {
    return absl::InvalidArgumentError(
        "must not have vllm and sglang together: a gateway would use either, depending on timing");
  }
  return apis;
}

void AddPorts(OptionTable& table, RouterOptions& o) {
  table.Add(
      "listen", &o.listen,
      "HOST:PORT of the client API, and of the worker link without --worker_listen; port 0 picks a free one");
  table.Add(
      "worker_listen", &o.worker_listen,
      "HOST:PORT of the worker link; empty: on --listen, if neither clients nor workers must authenticate");
  table.AddParsed(
      "client_apis", &o.client_apis, "bfio,vllm",
      "APIs at --listen, separated by commas: bfio (bfio.v1.Inference), and for gateways either vllm "
      "(vllm.grpc.engine.VllmEngine) or sglang (sglang.grpc.scheduler.SglangScheduler)",
      ParseClientApis);
  table.Add("admin_listen", &o.admin_listen, "HOST:PORT of the admin API; port 0 picks a free one");
  table.Add(
      "http_listen", &o.http_listen,
      "HOST:PORT of the live page and of /metrics, protected as the admin API (TLS, tokens); empty: none");
  // Both ends of a link use the same prefix: --client_tls of the router belongs to the same link as
  // --client_tls of bfio_loadgen.
  table.AddParsed(
      "client_tls", &o.client_tls, "",
      "client API: cert=FILE,key=FILE,ca=FILE, PEM: the router's certificate and its key; with ca "
      "clients must show a certificate of these CAs. Empty: plain text",
      ParseTlsFiles);
  table.AddParsed("worker_tls", &o.worker_tls, "",
                  "worker link: as --client_tls; with ca workers must show a certificate", ParseTlsFiles);
  table.AddParsed("admin_tls", &o.admin_tls, "",
                  "admin API: as --client_tls; with ca operators must show a certificate", ParseTlsFiles);
  table.Add("client_tokens", &o.client_tokens,
            "client API: file of bearer tokens, lines 'TENANT sha256:HEX|token:TEXT [expires=DATE]'; empty: "
            "no token is required");
  table.Add("admin_tokens", &o.admin_tokens,
            "admin API: file of operators' bearer tokens, as --client_tokens; empty: no token is required");
  table.Add("resume_key_file", &o.resume_key_file,
            "client API: file of keys for resume_tickets, one per line, 32 to 512 characters. The first key "
            "signs, all keys verify. Use the same file for every router that may follow this one. Empty: "
            "after a restart, resumed requests that no worker holds count as new requests");
  table.Add(
      "bind_worker_id", &o.bind_worker_id,
      "worker link: a worker may only have the --worker_id that its certificate names (DNS name, or else "
      "common name)");
  table.Add("insecure", &o.insecure,
            "permit ports that other machines can reach without encryption or without authentication");
}

absl::StatusOr<std::vector<std::string>> ParseModels(const std::string& text) {
  std::vector<std::string> models = absl::StrSplit(text, ',', absl::SkipEmpty());
  for (const std::string& model : models) {
    if (model.size() < 8 || model.size() > 64 ||
        model.find_first_not_of("0123456789abcdef") != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", model, "' is not 8 to 64 lower-case hexadecimal digits, as workers log them"));
    }
  }
  return models;
}

void AddModel(OptionTable& table, RouterOptions& o) {
  table.Add(
      "tokenizer", &o.tokenizer,
      "APIs of gateways: directory with the model's tokenizer.json and config.json, which gateways get, and "
      "which stop texts need; empty: those of the first worker that has a --model");
  table.Add(
      "served_model_name", &o.served_model_name,
      "APIs of gateways: name of the model; empty: the last part of the tokenizer's directory, or bfio");
}

void AddGroups(OptionTable& table, RouterSettings& settings) {
  RouterOptions& o = settings.router;
  table.Add("workers", &o.workers, Within(1, 4096),
            "ranks that a group's first epoch waits for; later joins and losses re-form the group");
  table.Add("groups", &o.groups, Within(1, GroupSet::kMaxGroups),
            "groups of --workers ranks that must be complete before the router is ready; workers without "
            "--group are assigned to these groups; workers with --group may form more groups");
  table.AddParsed("engines", &o.engines, "",
                  "engines whose ranks are workers of this router, separated by commas: vllm://HOST:PORT, an "
                  "unmodified vLLM gRPC server, or sglang://HOST:PORT, SGLang's. --coupling is none for "
                  "them. ?barrier=NAME after the last of several servers: their ranks meet in every step, as "
                  "with mixture-of-experts models. vllm+dns://NAME:PORT: a server at each address of the "
                  "name; file:PATH: one server per line. Both are read again every 2 s",
                  ReadEngineSource);
  table.AddParsed("models", &o.models, "",
                  "models that are served, separated by commas: the first 8 to 64 hexadecimal digits of a "
                  "model's digest, which workers log when they start. Workers with another model are "
                  "refused, and retry. Empty: any",
                  ParseModels);
  table.AddChoice<std::string>("coupling", &settings.coupling,
                               {{"auto", "auto"}, {"barrier", "barrier"}, {"none", "none"}},
                               "barrier: workers meet in every step; none: each worker steps independently, "
                               "and the default of --policy is least_work with --engines, otherwise "
                               "jffc; auto: none with --engines that name no barrier and with chains of "
                               "servers, otherwise barrier");
  table.Add("step_timeout", &o.step_timeout, kTimeout,
            "a rank that does not reach a step's barrier, or form the barrier of a new epoch, in this time "
            "has failed");
  table.Add("restart_settle", &o.restart_settle, kTime,
            "after a restart, how long to wait for the workers that held requests before planning without "
            "them");
  table.Add("drain_timeout", &o.drain_timeout, kTimeout, "how long accepted requests may run after SIGTERM");
}

void AddDecisions(OptionTable& table, RouterOptions& o) {
  table.Add("policy", &o.policy, "placement policy: see the list above");
  table.Add("shadow", &o.shadow,
            "policies, separated by commas, that plan for every decision without being applied; the admin "
            "state has the idle work that following each of them would have saved");
  table.Add(
      "objective", &o.policy_options.objective,
      "bf_io's objective: square (squared deviation from the mean load, with a weight on waiting age), paper "
      "(J) or refill (square over the horizon, with less weight of a worker after its next completion)");
  table.Add("horizon", &o.policy_options.horizon, Within(0, 500),
            "H: number of steps that bf_io and br_h look ahead, with --lookahead; bf_io_auto sets its own");
  table.Add("wait_ratio", &o.policy_options.wait_ratio, Within(core::kLeastWaitRatio, core::kMostWaitRatio),
            "bf_io_auto, where slots are short: 99th percentile of waits over that of first come, first "
            "served; a larger ratio balances better");
  table.Add("lookahead", &o.lookahead, "predictor of completions for the policy: see the list above");
  table.AddChoice<core::PlanMode>(
      "plan_mode", &o.plan_mode,
      {{"pipelined", core::PlanMode::kPipelined}, {"lockstep", core::PlanMode::kLockstep}},
      "pipelined: the plan made from step k is applied at k+2, no worker waits for the router; lockstep: "
      "workers wait for the plan of each step");
  table.AddChoice<bool>("worker_speeds", &o.worker_speeds, {{"auto", true}, {"off", false}},
                        "auto: plans balance times where workers' measured steps differ; off: all workers "
                        "count as equally fast");
  table.AddChoice<AgentOrder>(
      "agent_order", &o.agent_order,
      {{"due", AgentOrder::kDue}, {"age", AgentOrder::kAge}, {"off", AgentOrder::kOff}},
      "order of calls with a parent_id: due (the parent that is due first, by its age and its tokens), age "
      "(the oldest parent) or off (each call by its own age)");
  table.AddScaled("decide_budget_ms", absl::ToDoubleMilliseconds(o.decide_budget), Within(0, 60'000),
                  "how long a decision may search, in milliseconds, before it ends with the best plan so "
                  "far; 0: no limit",
                  [&o](double ms) { o.decide_budget = absl::Milliseconds(ms); });
  table.Add(
      "decision_log", &o.decision_log,
      "records every decision and its inputs in files PATH.000001 and on, for bfio_sim replay. Empty: none");
  table.AddScaled("decision_log_mb", static_cast<double>(o.decision_log_bytes >> 20), Within(1, 1 << 20),
                  "bound of the decision log on disk, in MiB; the oldest of its files are removed",
                  [&o](double mb) { o.decision_log_bytes = static_cast<int64_t>(mb * (1 << 20)); });
}

void AddLimits(OptionTable& table, RouterSettings& settings) {
  RouterOptions& o = settings.router;
  table.Add("max_waiting", &o.max_waiting, Within(1, 1'000'000),
            "bound of the waiting pool in requests; beyond it clients get RESOURCE_EXHAUSTED");
  table.Add("max_queue_time", &o.max_queue_time, kTime,
            "how long a request may wait for a worker before it ends with RESOURCE_EXHAUSTED, or UNAVAILABLE "
            "while no rank serves; requests that have been placed once do not end by it. Long enough for "
            "batches of requests and for workers that restart and load a large model, and shorter than the "
            "10 minutes after which OpenAI's clients give up; a client that wants less sets its deadline. "
            "0: no bound");
  table.Add("max_prompt_tokens", &o.limits.max_prompt_tokens, "longest prompt accepted, in tokens");
  table.Add("max_new_tokens", &o.limits.max_new_tokens, "largest max_new_tokens accepted");
  table.AddScaled("request_memory_mb",
                  static_cast<double>((o.max_waiting_bytes + o.replay_budget_bytes) >> 20),
                  Within(1, 1 << 20),
                  "MiB for the tokens of requests: two thirds for waiting prompts, beyond which requests are "
                  "refused; one third for prompts and delivered tokens that are kept for replays and resumes",
                  [&o](double mb) {
                    o.max_waiting_bytes = static_cast<int64_t>(mb * (1 << 20) * kWaitingShare);
                    o.replay_budget_bytes = static_cast<int64_t>(mb * (1 << 20)) - o.max_waiting_bytes;
                  });
  table.Add("client_timeout", &o.client_timeout, kTimeout,
            "how long a resumable request, running or ended, waits for its client to resume, here and on "
            "workers; and how long a client may leave its tokens unread before it is disconnected");
  table.AddParsed(
      "tenant_limits", &o.tenant_limits, "",
      "TENANT:rps=N,tps=N,concurrent=N,priority=N,ttft=S;...: requests and tokens per second, requests at "
      "a time and largest priority of a tenant, and the objective in seconds for the first token of its "
      "requests that state none; * for each tenant that is not named",
      ParseTenantLimits);
  table.AddParsed(
      "admission", &settings.admission, "none",
      "which requests may enter a worker's KV memory: none (a request reserves its prompt and "
      "max_new_tokens; the default without --engines), kv_feasible (while memory suffices at every future "
      "time with probability 0.99, by "
      "--lookahead; kv_feasible:confidence=P for another), mc_sf (the same, shortest first; mc_sf:most=K, "
      "256: steps after which no younger request goes first), protection:alpha=A (while at most the share 1 "
      "- A is in use; protection:alpha=0.05 is the default with --engines, which preempt by themselves); "
      "and, alone or joined to these with +, which requests leave the pool: wait or "
      "nested_wait (in batches; :tokens=N,most=K)",
      core::ParseAdmission);
}

void AddElection(OptionTable& table, ElectionOptions& o) {
  table.Add(
      "election_etcd", &o.etcd.endpoints,
      "endpoints of etcd, http://HOST:PORT or https://HOST:PORT, separated by commas: of all routers with "
      "the same --election_key one leads and the others stand by, with the probes of --http_listen "
      "alone. Empty: no election");
  table.Add("election_key", &o.key, "the key that the leader has in etcd");
  table.Add("election_ttl", &o.ttl, Within(absl::Seconds(2), absl::Hours(1)),
            "length of the lease: how long a failed leader blocks the next one, and how long a leader "
            "continues without etcd");
  table.AddParsed("election_tls", &o.etcd.tls, "",
                  "cert=FILE,key=FILE,ca=FILE, PEM: the CAs of etcd's certificate, and this router's "
                  "certificate where etcd requires one",
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

// The share of an engine's KV memory that stays free for the growth of its requests. With unknown lengths,
// shares of 0.04 and 0.08 are within 1 % of the best one on chat and within 3 % on long prompts. With outputs
// of thousands of tokens 0.08 is the best, and 0.04 has 10 % less (docs/benchmarks.md, "KV that is short").
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
      return absl::InvalidArgumentError("--coupling=barrier: the ranks of --engines step by themselves");
    const bool coupled = !o.engines.engines.front().barrier.empty();
    if (coupled && settings.coupling == "none")
      return absl::InvalidArgumentError("--coupling=none: --engines name a barrier");
    o.group_kind = coupled ? core::GroupKind::kCoupled : core::GroupKind::kIndependent;
  }
  if (settings.coupling == "barrier") o.group_kind = core::GroupKind::kBarrier;
  if (settings.coupling == "none") o.group_kind = core::GroupKind::kIndependent;
  o.limits.name_prefixes = !o.engines.empty();
  if (o.group_kind == core::GroupKind::kBarrier) return absl::OkStatus();
  if (o.plan_mode == core::PlanMode::kLockstep) {
    return absl::InvalidArgumentError(
        "--plan_mode=lockstep: workers that step by themselves do not wait for plans (--coupling=barrier)");
  }
  if (o.wait.kind != core::WaitAdmissionOptions::Kind::kNone) {
    return absl::InvalidArgumentError(
        "--admission=wait or nested_wait: batches are those of a common step (--coupling=barrier)");
  }
  // jffc is for chains, which differ in speed and do not slow down with the requests that they hold. A step
  // of an engine takes longer with each of its requests, no other rank waits for it, and it computes only the
  // prompt tokens that its prefix cache does not have.
  if (!table.given("policy") && o.group_kind == core::GroupKind::kIndependent)
    o.policy = o.engines.empty() ? "jffc" : "least_work";
  return absl::OkStatus();
}

}  // namespace

void AddRouterOptions(OptionTable& table, RouterSettings& settings) {
  AddPorts(table, settings.router);
  AddModel(table, settings.router);
  AddGroups(table, settings);
  AddDecisions(table, settings.router);
  AddLimits(table, settings);
  AddElection(table, settings.election);
  table.Add("log_level", &settings.log_level, "trace, debug, info, warning or error");
  table.Add("log_format", &settings.log_format, "text or json");
}

absl::Status FinishRouterOptions(const OptionTable& table, RouterSettings& settings) {
  // Failing to bind a default port is not an error, so that two routers can run on one machine.
  settings.router.http_may_fail = !table.given("http_listen");
  SetAdmission(table, settings);
  settings.election.name = NameFor(settings.router.listen);
  if (settings.router.served_model_name.empty() && !settings.router.tokenizer.empty())
    settings.router.served_model_name = ModelNameOf(settings.router.tokenizer);
  if (settings.election.etcd.endpoints.empty() && settings.election.etcd.tls.enabled()) {
    return absl::InvalidArgumentError("--election_tls: there is no --election_etcd");
  }
  return SetCoupling(table, settings);
}

}  // namespace bfio::router
