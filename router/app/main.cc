// bfio_router: reads its options, then runs a RouterServer until a signal arrives.
#include <malloc.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/base/annotated.h"
#include "common/base/shutdown.h"
#include "common/base/spdlog.h"
#include "common/base/version.h"
#include "common/config/program.h"
#include "common/telemetry/log.h"
#include "router/admin/web.h"
#include "router/app/engines.h"
#include "router/app/flags.h"
#include "router/app/program_chains.h"
#include "router/app/router_server.h"

namespace bfio::router {
namespace {

ProgramInfo Info() {
  ProgramInfo info;
  info.name = "bfio_router";
  info.version = Version();
  info.usage =
      "Places LLM requests on the data-parallel ranks of engines or workers, in every step, and streams the "
      "tokens to the clients.\n\n  bfio_router --engines=vllm://HOST:50051     serve in front of a vLLM gRPC "
      "server\n  bfio_router --min_ranks=4                   wait for 4 ranks of bfio_worker, then serve\n  "
      "bfio_router --min_ranks=4 --groups=2        two groups of 4 ranks, one waiting pool\n  bfio_router "
      "--min_ranks=4 --policy=fcfs     a baseline\n  bfio_router --config=router.yaml            settings "
      "from a file\n  bfio_router --election_etcd=http://ETCD:2379  lead, or stand "
      "by until the leader fails\n\nPolicies:\n";
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

// Null when --http_listen is empty, or when its default port cannot be bound.
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
  if (!options.http_may_fail) return Annotated("--http_listen", web.status());
  spdlog::warn("no probes on standby: {} (--http_listen sets another port)",
               std::string(web.status().message()));
  return nullptr;
}

// Waits on standby until this router leads; false when a signal arrived first.
absl::StatusOr<bool> Lead(Election& election, RouterOptions& options) {
  const auto standby = std::make_shared<Standby>(options.version);
  auto web = OpenStandbyPort(options, standby);
  if (!web.ok()) return web.status();
  const auto pause = [&](absl::Duration time) {
    standby->MarkAlive();
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

// Null without --election_etcd.
absl::StatusOr<std::unique_ptr<Election>> MakeElection(const ElectionOptions& options) {
  if (options.etcd.endpoints.empty()) return nullptr;
  return Annotated("--election_*", Election::Create(options));
}

int PrintCheck(const EngineCheck& check) {
  for (const std::string& rank : check.ranks) std::printf("%s\n", rank.c_str());
  for (const std::string& fault : check.faults) std::printf("wrong: %s\n", fault.c_str());
  std::printf("bfio_router: %zu ranks, %zu faults\n", check.ranks.size(), check.faults.size());
  return check.faults.empty() ? 0 : 1;
}

int Main(int argc, char** argv) {
  // Otherwise one large message of a peer would raise the threshold, and later ones would leave holes in
  // the heap: up to half as much again.
  mallopt(M_MMAP_THRESHOLD, 128 << 10);
  const ProgramInfo info = Info();
  RouterSettings settings;
  RouterOptions& options = settings.router;
  options.version = Version();
  OptionTable table;
  AddRouterOptions(table, settings);
  const SetChains set_chains = AddChainOptions(table);
  InitWithoutArguments(argc, argv, info, table);
  set_chains(options);
  if (absl::Status status = FinishRouterOptions(table, settings); !status.ok()) return ExitWith(info, status);
  if (absl::Status status = InitLogging(info.name, settings.log_level, settings.log_format); !status.ok()) {
    return ExitWith(info, status);
  }
  const auto exit_with = [&](const absl::Status& status) {
    FlushLog();  // the reason is the last line
    return ExitWith(info, status);
  };
  const absl::StatusOr<std::unique_ptr<Election>> election = MakeElection(settings.election);
  if (!election.ok()) return exit_with(election.status());
  if (settings.check_config) {
    if (absl::Status status = RouterServer::Check(options); !status.ok()) return exit_with(status);
    return PrintCheck(CheckEngines(options));
  }
  ShutdownSignal::Install();
  if (*election != nullptr) {
    // Checked at start, not only when this router has to take over.
    if (absl::Status status = RouterServer::Check(options); !status.ok()) return exit_with(status);
    const absl::StatusOr<bool> leads = Lead(**election, options);
    if (!leads.ok()) return exit_with(leads.status());
    if (!*leads) return 0;
  }
  absl::StatusOr<std::unique_ptr<RouterServer>> router = RouterServer::Start(options);
  if (!router.ok()) return exit_with(router.status());
  if (const std::string page = (*router)->http_address(); !page.empty()) {
    std::printf("bfio_router: live page and metrics on http%s://%s/\n",
                options.admin_tls.enabled() ? "s" : "", page.c_str());
  }
  if (const std::string& picker = (*router)->picker_address(); !picker.empty())
    std::printf("bfio_router: endpoint picker for Envoy on %s\n", picker.c_str());
  // Scripts read this line for the ports.
  std::printf("bfio_router: serving on %s, workers on %s, admin on %s, policy %s, waiting for %d workers\n",
              (*router)->address().c_str(), (*router)->worker_address().c_str(),
              (*router)->admin_address().c_str(), options.policy.name.c_str(), options.workers);
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
