#include "tools/sim/lp_dump.h"

#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "router/core/solver/lp_export.h"

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

void LpDumpPolicy::Decide(const core::Snapshot& snapshot, std::vector<core::Assignment>& plan) {
  if (status_.ok() && snapshot.step > warmup_ && written_ < limit_) {
    room_.Reset(snapshot);
    BuildInstance(snapshot);
    if (instance_.Target() > 0) Write(snapshot.step);
  }
  acting_->Decide(snapshot, plan);
}

void LpDumpPolicy::BuildInstance(const core::Snapshot& snapshot) {
  instance_ = core::Instance();
  for (core::WorkerIndex g = 0; g < room_.workers(); ++g) {
    core::SolverWorker worker;
    worker.load = room_[g].load_tokens;
    worker.slots = room_[g].free_slots;
    worker.kv_tokens = room_[g].free_kv_tokens;
    worker.time_per_token = room_[g].time_per_token;
    worker.time_offset = room_[g].time_offset;
    worker.active = room_[g].active;
    instance_.workers.push_back(worker);
  }
  for (const core::WaitingView& request : snapshot.waiting) {
    core::SolverItem item;
    item.load = request.prefill_tokens;
    item.kv_reserve = request.kv_reserve_tokens;
    item.priority = request.priority;
    item.curve = request.curve;
    instance_.items.push_back(item);
  }
  const core::Outlook& outlook = snapshot.outlook;
  instance_.horizon = outlook.horizon;
  instance_.ahead.assign(outlook.load.begin(), outlook.load.end());
  instance_.quiet.assign(outlook.quiet.begin(), outlook.quiet.end());
  instance_.curves.assign(outlook.curves.begin(), outlook.curves.end());
}

void LpDumpPolicy::Write(int64_t step) {
  std::string text;
  core::LpOptions options;
  options.title = absl::StrCat("bfio_sim, policy ", name(), ", step ", step);
  status_ = core::AppendLp(instance_, core::ObjectiveKind::kPaper, options, text);
  if (!status_.ok()) return;
  const std::string path = absl::StrFormat("%s/%s-%07d.lp", folder_, name(), step);
  std::ofstream file(path);
  file << text;
  if (!file.flush()) status_ = absl::InvalidArgumentError(absl::StrCat("cannot write ", path));
  ++written_;
}

}  // namespace bfio::sim
