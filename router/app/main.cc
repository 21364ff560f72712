// bfio_router: flags to options, then RouterServer until a signal comes.
#include <cstdio>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "bfio/v1/config.pb.h"
#include "common/base/shutdown.h"
#include "common/base/spdlog.h"
#include "common/config/command_line.h"
#include "common/config/program.h"
#include "common/telemetry/log.h"
#include "router/admin/standby_web.h"
#include "router/app/election_flags.h"
#include "router/app/limit_flags.h"
#include "router/app/program_chains.h"
#include "router/app/router_server.h"
#include "router/app/security_flags.h"

ABSL_FLAG(
    std::string, listen, "127.0.0.1:50051",
    "HOST:PORT of the client API, and of the worker link without --worker_listen; port 0 picks a free one");
ABSL_FLAG(std::string, admin_listen, "127.0.0.1:50052",
          "HOST:PORT of the admin API; port 0 picks a free one");
ABSL_FLAG(
    std::string, http_listen, "127.0.0.1:50053",
    "HOST:PORT of the live page and of /metrics, protected as the admin API (TLS, tokens); empty: none");
ABSL_FLAG(uint32_t, workers, 1,
          "ranks that a group's first epoch waits for; later joins and losses re-form the group");
ABSL_FLAG(uint32_t, groups, 1,
          "groups of --workers ranks that must be complete before the router is ready; workers that name no "
          "group (--group) are shared out among them, and workers that name one may form more");
ABSL_FLAG(
    std::string, barrier, "",
    "kind of barrier that groups meet by (star, nccl, local): workers with another one are refused, and "
    "ask again; empty: each worker's own");
ABSL_FLAG(std::string, models, "",
          "models that are served, separated by commas: 8 to 64 hexadecimal digits that a worker's model "
          "begins with, as it says when it starts; workers with another one are refused, and ask again; "
          "empty: any");
ABSL_FLAG(std::string, policy, "bf_io_auto", "who goes where: see the list above");
ABSL_FLAG(
    std::string, shadow, "",
    "policies, separated by commas, that plan for every decision without being obeyed; the admin state says "
    "how much idle work following them would have saved");
ABSL_FLAG(std::string, objective, "square",
          "bf_io's objective: square (squared deviation from the mean load, with a weight on waiting age), "
          "paper (J) or refill (square over the horizon, a worker weighing less after its next completion)");
ABSL_FLAG(double, discount, 1, "bf_io: what a step ahead counts against the one before it, above 0 up to 1");
ABSL_FLAG(
    uint32_t, horizon, 0,
    "H: how many steps ahead bf_io and br_h look, with --lookahead; bf_io_auto looks at the present only");
ABSL_FLAG(uint32_t, window, 0, "requests from the front of the waiting pool that the policy sees; 0: all");
ABSL_FLAG(std::string, lookahead, "none", "who predicts completions for the policy: see the list above");
ABSL_FLAG(std::string, plan_mode, "pipelined",
          "pipelined: the plan made from step k is applied at k+2, no worker waits for the router; "
          "lockstep: workers wait for the plan of each step");
ABSL_FLAG(std::string, coupling, "auto",
          "barrier: workers meet in every step; none: each steps by itself, and --policy is jffc unless it "
          "is given; auto: none where chains of servers are composed, else barrier");
ABSL_FLAG(
    std::string, worker_speeds, "auto",
    "auto: plans balance times where workers' measured steps differ; off: all workers count as equally fast");
ABSL_FLAG(std::string, agent_order, "due",
          "turns of calls with a parent_id: due (the parent that is due first: begun longest ago, its tokens "
          "counted in), age (the parent begun longest ago) or off (each call by its own age)");
ABSL_FLAG(
    double, prefill_weight, 16,
    "workers that take prompts in pieces: tokens of load that a prompt token counts as, beside the one it "
    "is, until it is computed; for bf_io and bf_io_auto. 0: nothing");
ABSL_FLAG(
    bool, prefill_pieces, true,
    "workers that take prompts in pieces: no rank computes more of them in a step than the mean rank has "
    "to compute, so that none holds the others up");
ABSL_FLAG(uint32_t, max_waiting, 4096,
          "bound of the waiting pool in requests; beyond it clients get RESOURCE_EXHAUSTED");
ABSL_FLAG(uint32_t, max_prompt_tokens, 131072, "longest prompt accepted, in tokens");
ABSL_FLAG(uint32_t, max_new_tokens, 65536, "largest max_new_tokens accepted");
ABSL_FLAG(absl::Duration, step_timeout, absl::Seconds(10),
          "a rank that does not reach a step's barrier in this time failed");
ABSL_FLAG(absl::Duration, form_timeout, absl::Seconds(10),
          "time for all ranks to form the barrier of a new epoch");
ABSL_FLAG(absl::Duration, report_timeout, absl::Milliseconds(200),
          "after a step's first report, how long the decision waits for the missing ones");
ABSL_FLAG(
    double, decide_budget_ms, 5,
    "how long a decision may search, in milliseconds, before it ends with the plan at hand; 0: until it is "
    "done");
ABSL_FLAG(absl::Duration, drain_timeout, absl::Seconds(30),
          "how long accepted requests may run on after SIGTERM");
ABSL_FLAG(
    std::string, decision_log, "",
    "where every decision and what it came from is recorded, in files PATH.000001 and on; bfio_sim replay "
    "reads them. Empty: nowhere");
ABSL_FLAG(uint32_t, decision_log_mb, 256,
          "bound of the decision log on disk, in MiB; the oldest of its files are removed");
ABSL_FLAG(uint64_t, seed, 1, "seed of randomised policies; give replicas different ones");
ABSL_FLAG(std::string, log_level, "info", "trace, debug, info, warning or error");
ABSL_FLAG(std::string, log_format, "text", "text or json");

namespace bfio::router {
namespace {

ProgramInfo Info() {
  ProgramInfo info;
  info.name = "bfio_router";
  info.version = BFIO_VERSION;
  info.usage =
      "Places decode requests on barrier-synchronised workers, every step, and streams their tokens back.\n\n"
      "  bfio_router --workers=4                     wait for 4 ranks, then serve\n"
      "  bfio_router --workers=4 --groups=2          two groups of 4 ranks, one waiting pool\n"
      "  bfio_router --workers=4 --policy=fcfs       a baseline\n"
      "  bfio_router --config=router.textproto       settings from a file (protobuf text or JSON)\n"
      "  bfio_router --election_etcd=http://ETCD:2379  lead, or stand by until the leader is gone\n\n"
      "Policies:\n";
  for (const core::PolicyInfo& policy : core::RegisteredPolicies()) {
    absl::StrAppend(&info.usage, "  ", policy.name,
                    std::string(std::max<size_t>(1, 16 - policy.name.size()), ' '), policy.summary, "\n");
  }
  absl::StrAppend(&info.usage, "\nLookaheads:\n");
  for (const core::LookaheadInfo& lookahead : core::RegisteredLookaheads()) {
    absl::StrAppend(&info.usage, "  ", lookahead.name,
                    std::string(std::max<size_t>(1, 16 - lookahead.name.size()), ' '), lookahead.summary,
                    "\n");
  }
  return info;
}

absl::Status CheckTimeout(absl::string_view flag, absl::Duration value) {
  if (value > absl::ZeroDuration() && value <= absl::Hours(24)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", absl::FormatDuration(value), ": must be above 0 and at most 24h"));
}

// Who may be in a group.
absl::Status ReadMembershipFlags(RouterOptions& options) {
  options.barrier = absl::GetFlag(FLAGS_barrier);
  const std::string& barrier = options.barrier;
  if (!barrier.empty() && barrier != "star" && barrier != "nccl" && barrier != "local") {
    return absl::InvalidArgumentError(
        absl::StrCat("--barrier=", barrier, ": must be star, nccl, local or empty"));
  }
  options.models = absl::StrSplit(absl::GetFlag(FLAGS_models), ',', absl::SkipEmpty());
  for (const std::string& model : options.models) {
    if (model.size() < 8 || model.size() > 64 ||
        model.find_first_not_of("0123456789abcdef") != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--models: '", model, "' is not 8 to 64 lower-case hexadecimal digits, as workers log them"));
    }
  }
  return absl::OkStatus();
}

// REQUIRES: plan_mode, policy and wait are set, and group_kind is what "auto" means.
absl::Status ReadCoupling(RouterOptions& options) {
  const std::string coupling = absl::GetFlag(FLAGS_coupling);
  if (coupling != "auto" && coupling != "barrier" && coupling != "none") {
    return absl::InvalidArgumentError(
        absl::StrCat("--coupling=", coupling, ": must be auto, barrier or none"));
  }
  if (coupling == "barrier") options.group_kind = core::GroupKind::kBarrier;
  if (coupling == "none") options.group_kind = core::GroupKind::kIndependent;
  if (options.group_kind == core::GroupKind::kBarrier) return absl::OkStatus();
  if (options.plan_mode == core::PlanMode::kLockstep) {
    return absl::InvalidArgumentError(
        "--plan_mode=lockstep: workers that step by themselves do not wait for plans (--coupling=barrier)");
  }
  if (options.wait.kind != core::WaitGateOptions::Kind::kNone) {
    return absl::InvalidArgumentError(
        "--admission=wait or nested_wait: batches are those of a common step (--coupling=barrier)");
  }
  if (!FlagWasGiven("policy")) options.policy = "jffc";
  return absl::OkStatus();
}

absl::StatusOr<RouterOptions> OptionsFromFlags() {
  RouterOptions options;
  options.version = BFIO_VERSION;
  options.listen = absl::GetFlag(FLAGS_listen);
  options.admin_listen = absl::GetFlag(FLAGS_admin_listen);
  options.http_listen = absl::GetFlag(FLAGS_http_listen);
  // The default port may be taken: two routers on a machine are legal.
  options.http_may_fail = !FlagWasGiven("http_listen");
  ReadSecurityFlags(options);
  options.policy = absl::GetFlag(FLAGS_policy);
  options.lookahead = absl::GetFlag(FLAGS_lookahead);
  options.shadow = absl::StrSplit(absl::GetFlag(FLAGS_shadow), ',', absl::SkipEmpty());
  options.policy_options.seed = absl::GetFlag(FLAGS_seed);
  options.policy_options.objective = absl::GetFlag(FLAGS_objective);
  const uint32_t workers = absl::GetFlag(FLAGS_workers), horizon = absl::GetFlag(FLAGS_horizon);
  const uint32_t waiting = absl::GetFlag(FLAGS_max_waiting), groups = absl::GetFlag(FLAGS_groups);
  if (groups < 1 || groups > GroupSet::kMaxGroups) {
    return absl::InvalidArgumentError(
        absl::StrCat("--groups=", groups, ": must be within 1..", GroupSet::kMaxGroups));
  }
  if (workers < 1 || workers > 4096) {
    return absl::InvalidArgumentError(absl::StrCat("--workers=", workers, ": must be within 1..4096"));
  }
  if (horizon > 500)
    return absl::InvalidArgumentError(absl::StrCat("--horizon=", horizon, ": must be within 0..500"));
  if (waiting < 1 || waiting > 1000000) {
    return absl::InvalidArgumentError(absl::StrCat("--max_waiting=", waiting, ": must be within 1..1000000"));
  }
  options.workers = static_cast<int32_t>(workers);
  options.groups = static_cast<int32_t>(groups);
  if (absl::Status status = ReadMembershipFlags(options); !status.ok()) return status;
  options.policy_options.horizon = static_cast<int32_t>(horizon);
  options.policy_options.discount = absl::GetFlag(FLAGS_discount);
  options.window = absl::GetFlag(FLAGS_window);
  options.max_waiting = waiting;
  options.limits.max_prompt_tokens = absl::GetFlag(FLAGS_max_prompt_tokens);
  options.limits.max_new_tokens = absl::GetFlag(FLAGS_max_new_tokens);
  options.decision_log = absl::GetFlag(FLAGS_decision_log);
  const uint32_t log_mb = absl::GetFlag(FLAGS_decision_log_mb);
  if (log_mb < 1 || log_mb > 1 << 20) {
    return absl::InvalidArgumentError(
        absl::StrCat("--decision_log_mb=", log_mb, ": must be within 1..1048576"));
  }
  options.decision_log_bytes = int64_t{log_mb} << 20;
  const std::string mode = absl::GetFlag(FLAGS_plan_mode);
  if (mode != "pipelined" && mode != "lockstep") {
    return absl::InvalidArgumentError(absl::StrCat("--plan_mode=", mode, ": must be pipelined or lockstep"));
  }
  options.plan_mode = mode == "pipelined" ? core::PlanMode::kPipelined : core::PlanMode::kLockstep;
  const std::string speeds = absl::GetFlag(FLAGS_worker_speeds);
  if (speeds != "auto" && speeds != "off") {
    return absl::InvalidArgumentError(absl::StrCat("--worker_speeds=", speeds, ": must be auto or off"));
  }
  options.worker_speeds = speeds == "auto";
  const std::string agents = absl::GetFlag(FLAGS_agent_order);
  if (agents != "due" && agents != "age" && agents != "off") {
    return absl::InvalidArgumentError(absl::StrCat("--agent_order=", agents, ": must be due, age or off"));
  }
  options.agent_order = agents == "due"   ? AgentOrder::kDue
                        : agents == "age" ? AgentOrder::kAge
                                          : AgentOrder::kOff;
  options.prefill = {absl::GetFlag(FLAGS_prefill_weight), absl::GetFlag(FLAGS_prefill_pieces)};
  if (!(options.prefill.weight >= 0 && options.prefill.weight <= 1e6)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--prefill_weight=", options.prefill.weight, ": must be within 0..1000000"));
  }
  const double budget_ms = absl::GetFlag(FLAGS_decide_budget_ms);
  if (!(budget_ms >= 0 && budget_ms <= 60'000)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--decide_budget_ms=", budget_ms, ": must be within 0..60000"));
  }
  options.decide_budget = absl::Milliseconds(budget_ms);
  options.step_timeout = absl::GetFlag(FLAGS_step_timeout);
  options.form_timeout = absl::GetFlag(FLAGS_form_timeout);
  options.report_timeout = absl::GetFlag(FLAGS_report_timeout);
  options.drain_timeout = absl::GetFlag(FLAGS_drain_timeout);
  for (const auto& [flag, value] :
       {std::pair<absl::string_view, absl::Duration>{"step_timeout", options.step_timeout},
        {"form_timeout", options.form_timeout},
        {"report_timeout", options.report_timeout},
        {"drain_timeout", options.drain_timeout}}) {
    if (absl::Status status = CheckTimeout(flag, value); !status.ok()) return status;
  }
  if (absl::Status status = ReadLimitFlags(options); !status.ok()) return status;
  if (absl::Status status = ReadChainFlags(options); !status.ok()) return status;
  if (absl::Status status = ReadCoupling(options); !status.ok()) return status;
  return options;
}

// Null where there is none: --http_listen is empty, or the default port is taken.
absl::StatusOr<std::unique_ptr<HttpServer>> OpenStandbyPort(const RouterOptions& options,
                                                            std::shared_ptr<const Standby> standby) {
  if (options.http_listen.empty()) return nullptr;
  auto web = OpenStandbyWeb(options.http_listen, options.admin_tls, std::move(standby));
  if (web.ok()) {
    std::printf("bfio_router: probes on http%s://%s/ until it leads\n",
                options.admin_tls.enabled() ? "s" : "", (*web)->address().c_str());
    std::fflush(stdout);
    return web;
  }
  if (!options.http_may_fail)
    return absl::Status(web.status().code(), absl::StrCat("--http_listen: ", web.status().message()));
  spdlog::warn("no probes while it stands by: {} (--http_listen names another port)",
               std::string(web.status().message()));
  return nullptr;
}

// Stands by until this router leads; false: a signal came first.
absl::StatusOr<bool> Lead(Election& election, RouterOptions& options) {
  const auto standby = std::make_shared<Standby>(options.version);
  auto web = OpenStandbyPort(options, standby);
  if (!web.ok()) return web.status();
  const auto pause = [&](absl::Duration time) {
    standby->Looked();
    return ShutdownSignal::WaitFor(time);
  };
  const auto on_standby = [&](const std::string& leader) {
    standby->SetLeader(leader);
    // Scripts read this line.
    std::printf("bfio_router: standing by for the router at %s\n", leader.c_str());
    std::fflush(stdout);
  };
  if (!election.Campaign(pause, on_standby)) return false;
  options.term = election.term();
  options.lease = election.lease();
  spdlog::info("elected: term {}", options.term);
  return true;
}

int Main(int argc, char** argv) {
  const ProgramInfo info = Info();
  const auto rest = InitProgram(argc, argv, info, v1::RouterConfig());
  if (!rest.empty())
    return ExitWith(info, absl::InvalidArgumentError(absl::StrCat("unexpected argument ", rest[0])));
  absl::StatusOr<RouterOptions> options = OptionsFromFlags();
  if (!options.ok()) return ExitWith(info, options.status());
  if (absl::Status status =
          InitLogging(info.name, absl::GetFlag(FLAGS_log_level), absl::GetFlag(FLAGS_log_format));
      !status.ok()) {
    return ExitWith(info, status);
  }
  ShutdownSignal::Install();
  absl::StatusOr<std::unique_ptr<Election>> election = ElectionFromFlags(options->listen);
  if (!election.ok()) return ExitWith(info, election.status());
  if (*election != nullptr) {
    // Found out now, not when this router is needed.
    if (absl::Status status = RouterServer::Check(*options); !status.ok()) return ExitWith(info, status);
    const absl::StatusOr<bool> leads = Lead(**election, *options);
    if (!leads.ok()) return ExitWith(info, leads.status());
    if (!*leads) return 0;
  }
  absl::StatusOr<std::unique_ptr<RouterServer>> router = RouterServer::Start(*options);
  if (!router.ok()) return ExitWith(info, router.status());
  if (const std::string page = (*router)->http_address(); !page.empty()) {
    std::printf("bfio_router: live page and metrics on http%s://%s/\n",
                options->admin_tls.enabled() ? "s" : "", page.c_str());
  }
  // Scripts read this line for the ports.
  std::printf("bfio_router: serving on %s, workers on %s, admin on %s, policy %s, waiting for %d workers\n",
              (*router)->address().c_str(), (*router)->worker_address().c_str(),
              (*router)->admin_address().c_str(), options->policy.c_str(), options->workers);
  std::fflush(stdout);
  while (!ShutdownSignal::WaitFor(absl::Hours(1))) {
  }
  spdlog::info("shutting down");
  (*router)->Shutdown();
  if (*election != nullptr) (*election)->Resign();
  return 0;
}

}  // namespace
}  // namespace bfio::router

int main(int argc, char** argv) {
  return bfio::router::Main(argc, argv);
}
