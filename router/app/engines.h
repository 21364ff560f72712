// The engines of a router: their clients, and the check of them before a router is started (--check_config).
// Threads: any.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/app/options.h"
#include "router/engine_link/engine_client.h"
#include "router/engine_link/engine_list.h"
#include "router/engine_link/http/pod_watch.h"

namespace bfio::router {

std::unique_ptr<EngineClient> NewEngineClient(const EngineAddress& engine);

// INVALID_ARGUMENT or NOT_FOUND for unusable files of TLS and tokens.
absl::Status CheckLogins(const std::vector<EngineAddress>& engines);

// Each is one line.
struct EngineCheck {
  // What each rank has.
  std::vector<std::string> ranks;
  // Why the router would not serve with all of them.
  std::vector<std::string> faults;
};

struct EngineCheckMeans {
  ResolveHost resolve = ResolveBySystem;
  ResolvePool resolve_pool = WatchPools();
  std::function<std::unique_ptr<EngineClient>(const EngineAddress&)> make_client = NewEngineClient;
  // How much longer than --step_timeout an engine's client may take to say that there is no answer.
  absl::Duration grace = absl::Seconds(1);
};

// Asks all engines at once for their sizes, then for their loads. Blocks for --step_timeout and the grace
// each time at most, and as long as the system's resolver.
EngineCheck CheckEngines(const RouterOptions& options, const EngineCheckMeans& means = {});

}  // namespace bfio::router
