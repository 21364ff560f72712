// bfio_router's options as an OptionTable: the one record of each.
//
// Purpose: what a flag, a field of the config file and a line of --help are, and which settings do not go
// together. Threads: call from main, before threads are started.
#ifndef BFIO_ROUTER_APP_FLAGS_H_
#define BFIO_ROUTER_APP_FLAGS_H_

#include <string>

#include "absl/status/status.h"
#include "common/config/options.h"
#include "router/app/options.h"
#include "router/core/admission/admission_text.h"
#include "router/election/election.h"

namespace bfio::router {

struct RouterSettings {
  RouterOptions router;
  // Without endpoints: no election.
  ElectionOptions election;
  core::AdmissionSetting admission;
  // "auto", "barrier" or "none".
  std::string coupling = "auto";
  std::string log_level = "info", log_format = "text";
};

// `settings` outlives the reading of `table`.
void AddRouterOptions(OptionTable& table, RouterSettings& settings);

// What follows from several options, once all are read; chains have set `router.group_kind` to what
// coupling "auto" means. INVALID_ARGUMENT, naming the flag.
absl::Status FinishRouterOptions(const OptionTable& table, RouterSettings& settings);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_APP_FLAGS_H_
