// Settings of the router, checked once at start.
//
// Threads: plain data.
#ifndef BFIO_ROUTER_APP_OPTIONS_H_
#define BFIO_ROUTER_APP_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/net/tls.h"
#include "router/core/policy/policy.h"
#include "router/core/scheduler/scheduler_options.h"
#include "router/election/lease.h"
#include "router/group/group_set.h"
#include "router/requests/limits.h"
#include "router/requests/overload.h"
#include "router/requests/request_lifecycle.h"
#include "router/requests/tenant_limits.h"
#include "router/worker_link/worker_port_service.h"

namespace bfio::router {

struct ClientApis {
  bool bfio = true;
  bool vllm = true;
};

struct RouterOptions {
  // HOST:PORT; port 0 picks a free one.
  std::string listen = "127.0.0.1:50051";
  std::string admin_listen = "127.0.0.1:50052";
  // Of the worker link; empty: it is on `listen`.
  std::string worker_listen;
  // Of the live page and /metrics, protected as the admin API; empty: none. When it may fail, a port that
  // cannot be had is a warning.
  std::string http_listen = "127.0.0.1:50053";
  // APIs at `listen`: bfio.v1.Inference and vllm.grpc.engine.VllmEngine. At least one.
  ClientApis client_apis;
  // Directory of the model's tokenizer, for gateways; empty: none. And the model's name to them.
  std::string tokenizer;
  std::string served_model_name;
  bool http_may_fail = false;
  // How the ports are protected (router/app/ports.h). Tokens files may be empty: no token is asked for.
  TlsFiles client_tls, worker_tls, admin_tls;
  std::string client_tokens, admin_tokens;
  // What resume_tickets are signed with (router/frontend/resume_tickets.h); empty: there are none.
  std::string resume_key_file;
  // A worker may only say the worker_id that its certificate names.
  bool bind_worker_id = false;
  // Ports that other machines reach may be unprotected.
  bool insecure = false;
  // Ranks that a group's first epoch waits for, and groups that must serve before the router is ready.
  int32_t workers = 1;
  int32_t groups = 1;
  // Beginnings of the models that are served; empty: any (router/group/group_set.h).
  std::vector<std::string> models;
  std::string policy = "bf_io_auto";
  core::PolicyOptions policy_options = {.gap_every = 64};
  // Policies that plan for every decision without being obeyed (router/core/shadow).
  std::vector<std::string> shadow;
  // Who predicts completions for the policy (router/core/lookahead).
  std::string lookahead = "none";
  // Plans balance the times of workers that say that they are slower or faster than others
  // (router/core/scheduler/worker_speeds.h), instead of their tokens.
  bool worker_speeds = true;
  // Who may enter which worker's KV memory (router/core/admission/kv_gate.h), and who waits for others of its
  // like before (wait_gate.h).
  core::KvGateOptions admission;
  core::WaitGateOptions wait;
  AgentOrder agent_order = AgentOrder::kDue;
  core::PlanMode plan_mode = core::PlanMode::kPipelined;
  // Whether a group's ranks meet in a barrier, or each steps by itself.
  core::GroupKind group_kind = core::GroupKind::kBarrier;
  int64_t max_waiting = 4096;
  RequestLimits limits;
  // A rank that does not reach a step's barrier in this time has failed, and so has one that has not formed
  // the barrier of a new epoch.
  absl::Duration step_timeout = absl::Seconds(10);
  // How long a decision may search before it ends with the plan at hand; 0: until it is done.
  absl::Duration decide_budget = absl::Milliseconds(5);
  // How long accepted requests may run on after SIGTERM.
  absl::Duration drain_timeout = absl::Seconds(30);
  // Where every decision is recorded (router/record), and the bound of that log; empty: nowhere.
  std::string decision_log;
  int64_t decision_log_bytes = int64_t{256} << 20;
  // What is kept for replays and resumes, in bytes.
  int64_t replay_budget_bytes = int64_t{256} << 20;
  // How long a resumable request waits for its client, running or ended, and how long a client may take none
  // of its tokens.
  absl::Duration client_timeout = absl::Seconds(30);
  // After a restart: how long the first epoch waits for the workers that held requests, and clients that come
  // back for what they held.
  absl::Duration restart_settle = absl::Seconds(5);
  // Prompts of requests that have given no token yet, in bytes.
  int64_t max_waiting_bytes = int64_t{512} << 20;
  TenantLimits tenant_limits;
  // Of an elected router (router/election): its term, and the lease without which it decides nothing. 0 and
  // null: nobody else could lead.
  uint64_t term = 0;
  std::shared_ptr<Lease> lease;
  // What is served beside WorkerLink: chains of servers, where the program has them. Null: nothing.
  MakeWorkerPortService worker_port_service;
  std::string version = "dev";

  // What the parts are set up with. `instance` is this router's life (common/base/router_instance.h).
  core::SchedulerOptions scheduler() const;
  core::PolicySetting policy_setting() const { return {policy, policy_options}; }
  StreamLimits stream() const { return {.timeout = client_timeout}; }
  OverloadOptions overload() const;
  RequestOptions requests() const;
  GroupSetOptions group_set(uint64_t instance) const;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_APP_OPTIONS_H_
