// Settings of the router, checked once at startup. Threads: plain data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/net/tls.h"
#include "router/core/policy/policy.h"
#include "router/core/scheduler/scheduler_options.h"
#include "router/election/lease.h"
#include "router/engine_link/engine_list.h"
#include "router/group/group_set.h"
#include "router/requests/limits.h"
#include "router/requests/overload.h"
#include "router/requests/request_lifecycle.h"
#include "router/requests/tenant_limits.h"
#include "router/worker_link/worker_port_service.h"

namespace bfio::router {

// At most one of vllm and sglang: a gateway that tries both would take the port for a single engine.
struct ClientApis {
  bool bfio = true;
  bool vllm = true;
  bool sglang = false;
};

struct RouterOptions {
  // HOST:PORT; port 0 picks a free one.
  std::string listen = "127.0.0.1:50051";
  std::string admin_listen = "127.0.0.1:50052";
  // HOST:PORT of the worker link; empty: it is on `listen`.
  std::string worker_listen;
  // HOST:PORT of the live page and /metrics, protected like the admin API; empty: no such port. With
  // http_may_fail, a port that cannot be bound is a warning.
  std::string http_listen = "127.0.0.1:50053";
  // HOST:PORT at which Envoy asks for places (router/frontend/endpoint_picker), protected like `listen`;
  // empty: no such port. `tenant_header` names the tenant there.
  std::string picker_listen;
  std::string tenant_header = "x-gateway-inference-fairness-id";
  // APIs at `listen`: bfio.v1.Inference, and one for gateways. At least one.
  ClientApis client_apis;
  // Directory of the model's tokenizer, for gateways; empty: none.
  // served_model_name: the model's name for gateways.
  std::string tokenizer;
  std::string served_model_name;
  bool http_may_fail = false;
  // Protection of the ports (router/app/router_server.h). Without a tokens file, no token is required.
  TlsFiles client_tls, worker_tls, admin_tls;
  std::string client_tokens, admin_tokens;
  // File of the key that signs resume_tickets (ResumeTickets); empty: no tickets.
  std::string resume_key_file;
  // A worker's worker_id must be the name in its certificate.
  bool bind_worker_id = false;
  // Allows unprotected ports that other machines can reach.
  bool insecure = false;
  // Number of ranks that a group's first epoch waits for, and number of groups that must serve before the
  // router is ready.
  int32_t workers = 1;
  int32_t groups = 1;
  // Engines whose ranks are workers of this router (router/engine_link); empty: none. The ranks step
  // independently.
  EngineSource engines;
  // Prefixes of the digests of the models that are served; empty: any model (router/group/group_set.h).
  std::vector<std::string> models;
  core::PolicySetting policy = {"bf_io_auto", {}};
  // The predictor of completions for the policy (router/core/lookahead).
  std::string lookahead = "survival";
  // Admission to the workers' KV memory (router/core/admission/kv_admission.h), and batching of similar
  // requests before it (wait_admission.h).
  core::KvAdmissionOptions admission;
  core::WaitAdmissionOptions wait;
  core::PlanMode plan_mode = core::PlanMode::kPipelined;
  // Whether a group's ranks meet in a barrier, or each steps independently.
  core::GroupKind group_kind = core::GroupKind::kBarrier;
  int64_t max_waiting = 4096;
  RequestLimits limits;
  // A rank fails when it does not reach a step's barrier, or does not form the barrier of a new epoch, within
  // this time.
  absl::Duration step_timeout = absl::Seconds(10);
  // Time limit of a decision's search, which then returns its best plan so far; 0: no limit.
  absl::Duration decide_budget = absl::Milliseconds(5);
  // How long an accepted request may wait for its first placement; 0: no bound.
  absl::Duration max_queue_time = RequestOptions().max_queue_time;
  bool hands_over_all = RequestOptions().hands_over_all;
  // How long accepted requests may continue after SIGTERM.
  absl::Duration drain_timeout = absl::Seconds(30);
  // File in which every decision is recorded (router/record), and its size limit; empty: no log.
  std::string decision_log;
  int64_t decision_log_bytes = int64_t{256} << 20;
  // Bytes kept for replays and resumes.
  int64_t replay_budget_bytes = int64_t{256} << 20;
  // How long a resumable request, running or ended, waits for its client, and how long a client may leave all
  // its tokens unread.
  absl::Duration client_timeout = absl::Seconds(30);
  // After a restart: how long the first epoch waits for workers that hold requests, and resuming clients wait
  // for those workers.
  absl::Duration restart_settle = absl::Seconds(5);
  // Bound on the prompt bytes of requests without a first token.
  int64_t max_waiting_bytes = int64_t{512} << 20;
  TenantLimits tenant_limits;
  // For an elected router (router/election): its term, and the lease without which it decides nothing. 0 and
  // null without an election.
  uint64_t term = 0;
  std::shared_ptr<Lease> lease;
  // The service beside WorkerLink: chains of servers, in programs that have them. Null: none.
  MakeWorkerPortService worker_port_service;
  std::string version = "dev";

  // The options of the router's parts. `instance` identifies this run of the router
  // (common/base/router_instance.h).
  core::SchedulerOptions scheduler() const;
  StreamLimits stream() const { return {.timeout = client_timeout}; }
  OverloadOptions overload() const;
  RequestOptions requests() const;
  GroupSetOptions group_set(uint64_t instance) const;
};

}  // namespace bfio::router
