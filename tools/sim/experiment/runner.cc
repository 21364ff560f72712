#include "tools/sim/experiment/runner.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace bfio::sim {
namespace {

// Steps between two looks at whether to go on.
constexpr int64_t kStepsPerLook = 64;

}  // namespace

absl::StatusOr<std::vector<RunJson>> Runner::Run(const std::vector<PlannedRun>& runs) const {
  std::vector<RunJson> results(runs.size());
  std::vector<std::string> names;
  for (const PlannedRun& run : runs) names.push_back(run.name);
  const absl::Status status = ForEach(names, [&](size_t i, const GoOn& go_on) -> absl::Status {
    const PlannedRun& planned = runs[i];
    absl::StatusOr<std::unique_ptr<Simulation>> simulation =
        Simulation::Create(planned.options, *planned.trace);
    if (!simulation.ok()) return simulation.status();
    absl::StatusOr<RunJson> run =
        (*simulation)->Run([&](int64_t steps) { return steps % kStepsPerLook != 0 || go_on(); }, planned.tap);
    if (!run.ok()) return run.status();
    results[i] = *std::move(run);
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return results;
}

absl::Status Runner::ForEach(const std::vector<std::string>& names,
                             const std::function<absl::Status(size_t, const GoOn&)>& task) const {
  std::atomic<size_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  absl::Status first_error;
  size_t done = 0;
  const GoOn go_on = [&] {
    if (go_on_ && !stop) {
      const std::lock_guard lock(mutex);
      if (!go_on_()) stop = true;
    }
    return !stop;
  };
  const auto work = [&] {
    for (size_t i = next++; i < names.size() && !stop; i = next++) {
      absl::Status status = task(i, go_on);
      const std::lock_guard lock(mutex);
      ++done;
      if (!status.ok()) {
        stop = true;
        if (first_error.ok())
          first_error = absl::Status(status.code(), absl::StrCat(names[i], ": ", status.message()));
      } else if (progress_) {
        progress_(static_cast<double>(done) / static_cast<double>(names.size()), names[i]);
      }
    }
  };
  std::vector<std::thread> threads;
  const int32_t count =
      std::clamp<int32_t>(threads_, 1, std::max<int32_t>(1, static_cast<int32_t>(names.size())));
  for (int32_t i = 1; i < count; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (!first_error.ok()) return first_error;
  if (stop) return absl::CancelledError("stopped by a signal");
  return absl::OkStatus();
}

}  // namespace bfio::sim
