// bfio_router's options as an OptionTable, with one record per option. Defines each option's flag, config
// field and --help line, and which settings exclude each other. Threads: call from main, before threads are
// started.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/config/options.h"
#include "router/app/options.h"
#include "router/core/admission/admission_text.h"
#include "router/election/election.h"

namespace bfio::router {

struct RouterSettings {
  RouterOptions router;
  // Without endpoints there is no election.
  ElectionOptions election;
  core::AdmissionSetting admission;
  // "auto", "barrier" or "none".
  std::string coupling = "auto";
  std::string log_level = "info", log_format = "text";
  // Only check the options and the engines.
  bool check_config = false;
};

// `settings` must live until `table` has been read.
void AddRouterOptions(OptionTable& table, RouterSettings& settings);

// Sets what depends on several options, after all are read. Chains have already set `router.group_kind` for
// coupling "auto". INVALID_ARGUMENT, naming the flag.
absl::Status FinishRouterOptions(const OptionTable& table, RouterSettings& settings);

}  // namespace bfio::router
