#include "tools/sim/run/lp_dump.h"

#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "router/core/policy/snapshot_instance.h"
#include "tools/sim/run/lp_export.h"

namespace bfio::sim {

LpDumpPolicy::LpDumpPolicy(std::unique_ptr<core::Policy> acting, const SimOptions& options)
    : acting_(std::move(acting)),
      folder_(options.dump_lp),
      limit_(options.dump_lp_limit),
      warmup_(options.warmup) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) status_ = absl::InvalidArgumentError(absl::StrCat("--dump-lp=", folder_, ": ", error.message()));
}

void LpDumpPolicy::Decide(const core::Snapshot& snapshot, core::Decision& decision) {
  if (status_.ok() && snapshot.step > warmup_ && written_ < limit_) {
    free_.Reset(snapshot);
    core::FillInstance(snapshot, free_, snapshot.outlook.horizon, instance_);
    if (instance_.Target() > 0) Write(snapshot.step);
  }
  acting_->Decide(snapshot, decision);
}

void LpDumpPolicy::Write(int64_t step) {
  std::string text;
  LpOptions options;
  options.title = absl::StrCat("bfio_sim, policy ", name(), ", step ", step);
  status_ = AppendLp(instance_, core::ObjectiveKind::kPaper, options, text);
  if (!status_.ok()) return;
  const std::string path = absl::StrFormat("%s/%s-%07d.lp", folder_, name(), step);
  std::ofstream file(path);
  file << text;
  if (!file.flush()) status_ = absl::InvalidArgumentError(absl::StrCat("cannot write ", path));
  ++written_;
}

}  // namespace bfio::sim
