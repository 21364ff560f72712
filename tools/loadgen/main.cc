// bfio_loadgen: sends requests to a router, checks every stream, measures latencies.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/rng.h"
#include "common/base/shutdown.h"
#include "common/base/spdlog.h"
#include "common/base/status_macros.h"
#include "common/config/program.h"
#include "common/net/channel.h"
#include "common/net/connection_wait.h"
#include "common/net/grpc_log.h"
#include "common/net/login.h"
#include "common/telemetry/log.h"
#include "tools/loadgen/admin.h"
#include "tools/loadgen/barrier.h"
#include "tools/loadgen/flags.h"
#include "tools/loadgen/options.h"
#include "tools/loadgen/progress.h"
#include "tools/loadgen/report.h"
#include "tools/loadgen/run_page.h"
#include "tools/loadgen/runner.h"
#include "tools/loadgen/schedule.h"

namespace bfio::loadgen {
namespace {

constexpr absl::Duration kAdminTimeout = absl::Seconds(5);

const ProgramInfo& Info() {
  static const ProgramInfo* const info = new ProgramInfo{
      "bfio_loadgen", BFIO_VERSION,
      "bfio_loadgen sends requests to a bfio router, checks every token stream and measures latencies.\n\n"
      "  bfio_loadgen --target=127.0.0.1:50051 --concurrency=256 --requests=5000\n"
      "  bfio_loadgen --trace=AzureLLMInferenceTrace_conv.csv --arrival=trace --time_scale=2 --duration=300\n"
      "  bfio_loadgen --profile=code --arrival=gamma --rate=40 --burstiness=0.5 --requests=2000 "
      "--json=out.json\n"
      "  bfio_loadgen --arrival=sweep --rates=10:100:10 --step_duration=60 --goodput=ttft:0.5,tpot:0.05 "
      "--html=sweep.html\n\n"
      "Latencies count from the time a request was due. Exit code: 0 success, 1 failed requests, 2 bad\n"
      "input, 3 a token stream violated the API's contract, 130 interrupted (with the results so far)."};
  return *info;
}

// Waits until every channel has a connection. A signal ends the wait early with OK; the run then sends
// nothing.
absl::Status Connect(const std::vector<std::shared_ptr<grpc::Channel>>& channels, const Options& options) {
  const absl::Time give_up = MonotonicNow() + options.connect_timeout;
  for (const auto& channel : channels) {
    for (ConnectionWait wait(channel); !wait.Connected(); absl::SleepFor(wait.pause())) {
      if (ShutdownSignal::Requested()) return absl::OkStatus();
      if (MonotonicNow() >= give_up) {
        return absl::UnavailableError(absl::StrCat("no router answers at ", options.target, " within ",
                                                   absl::FormatDuration(options.connect_timeout)));
      }
    }
  }
  return absl::OkStatus();
}

// Reads the group's sums. On an error it logs the reason and returns nothing, because the run is useful
// without them.
std::optional<BarrierReading> TryReadBarrier(const std::shared_ptr<grpc::Channel>& admin,
                                             const Login& login) {
  if (admin == nullptr) return std::nullopt;
  absl::StatusOr<BarrierReading> reading = ReadBarrier(admin, login, kAdminTimeout);
  if (reading.ok()) return *std::move(reading);
  spdlog::warn("no barrier measurements: {}", std::string(reading.status().message()));
  return std::nullopt;
}

// Writes directly rather than through a temporary file: `path` may be a pipe or a device.
absl::Status WriteFile(const std::string& path, const std::string& text) {
  if (path.empty()) return absl::OkStatus();
  std::ofstream out(path, std::ios::trunc);
  out << text;
  out.close();
  return out ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

absl::Status WriteReport(const Report& report) {
  const Options& options = report.options;
  const bool json_only = options.json == "-";
  std::fputs(json_only ? ToJson(report).c_str() : ToTable(report).c_str(), stdout);
  std::fflush(stdout);
  if (!json_only) {
    BFIO_RETURN_IF_ERROR(WriteFile(options.json, ToJson(report)));
  }
  return options.report.empty() ? absl::OkStatus() : WriteFile(options.report, RunPage(report));
}

absl::StatusOr<int> RunProgram(const Settings& settings) {
  const Options& options = settings.options;
  BFIO_ASSIGN_OR_RETURN(Trace trace, LoadTrace(options));
  BFIO_ASSIGN_OR_RETURN(Schedule schedule, Schedule::Create(options, std::move(trace)));

  BFIO_ASSIGN_OR_RETURN(const Login login,
                        MakeLogin(options.target, "client", settings.client_tls, settings.client_token_file));
  BFIO_ASSIGN_OR_RETURN(const Login admin_login,
                        MakeLogin(options.admin, "admin", settings.admin_tls, settings.admin_token_file));

  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (uint32_t i = 0; i < options.connections; ++i) {
    channels.push_back(
        NewChannel(ParseTarget(options.target)->ToString(), static_cast<int>(i), login.credentials));
  }
  BFIO_RETURN_IF_ERROR(Connect(channels, options));
  const std::shared_ptr<grpc::Channel> admin =
      options.admin.empty() ? nullptr
                            : NewChannel(ParseTarget(options.admin)->ToString(), 0, admin_login.credentials);

  const absl::Time started_at = absl::Now();
  const uint64_t id =
      Mix64(static_cast<uint64_t>(absl::ToUnixNanos(started_at)) ^ static_cast<uint64_t>(getpid()));
  Progress progress(isatty(STDERR_FILENO) != 0);
  const std::optional<BarrierReading> before = TryReadBarrier(admin, admin_login);
  Runner runner(
      options, login, schedule, channels, absl::StrCat("lg-", absl::Hex(id, absl::kZeroPad16)),
      [] { return ShutdownSignal::Requested(); }, progress);
  const Results results = runner.Run();
  progress.Clear();
  const bool interrupted = ShutdownSignal::Requested();

  Report report = {.options = options,
                   .trace = schedule.trace(),
                   .results = results,
                   .version = BFIO_VERSION,
                   .started_at = started_at,
                   .interrupted = interrupted};
  const std::optional<BarrierReading> after =
      before.has_value() ? TryReadBarrier(admin, admin_login) : std::nullopt;
  if (after.has_value()) {
    absl::StatusOr<BarrierMeasurements> figures = Between(*before, *after);
    if (figures.ok()) report.barrier = *std::move(figures);
    if (!figures.ok()) spdlog::warn("{}", std::string(figures.status().message()));
  }
  BFIO_RETURN_IF_ERROR(WriteReport(report));
  return ExitCode(results, interrupted);
}

int Main(int argc, char** argv) {
  Settings settings;
  OptionTable table;
  AddLoadgenOptions(table, settings);
  const std::vector<std::string> rest = InitProgram(argc, argv, Info(), table);
  if (!rest.empty())
    return ExitWith(Info(), absl::InvalidArgumentError(absl::StrCat("unexpected argument ", rest[0])));
  absl::Status status = InitLogging(Info().name, settings.log_level, settings.log_format);
  if (!status.ok()) return ExitWith(Info(), status);
  InstallGrpcLog();
  ShutdownSignal::Install();
  status = CheckOptions(settings.options);
  if (!status.ok()) return ExitWith(Info(), status);
  const absl::StatusOr<int> code = RunProgram(settings);
  return code.ok() ? *code : ExitWith(Info(), code.status());
}

}  // namespace
}  // namespace bfio::loadgen

int main(int argc, char** argv) {
  return bfio::loadgen::Main(argc, argv);
}
