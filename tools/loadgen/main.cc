// bfio_loadgen: sends requests to a router, checks every stream, measures latencies.
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bfio/v1/admin.grpc.pb.h"
#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/rng.h"
#include "common/base/shutdown.h"
#include "common/base/spdlog.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/config/program.h"
#include "common/net/channel.h"
#include "common/net/connection_wait.h"
#include "common/net/grpc_log.h"
#include "common/net/login.h"
#include "common/net/status.h"
#include "common/telemetry/log.h"
#include "tools/loadgen/barrier.h"
#include "tools/loadgen/options.h"
#include "tools/loadgen/progress.h"
#include "tools/loadgen/report.h"
#include "tools/loadgen/runner.h"
#include "tools/loadgen/schedule.h"

namespace bfio::loadgen {
namespace {

constexpr absl::Duration kAdminTimeout = absl::Seconds(5);

const ProgramInfo& Info() {
  static const ProgramInfo* const info = new ProgramInfo{
      "bfio_loadgen", Version(),
      "bfio_loadgen sends requests to a bfio router, checks every token stream and measures latencies.\n\n"
      "  bfio_loadgen --target=127.0.0.1:50051 --concurrency=256 --requests=5000\n"
      "  bfio_loadgen --trace=AzureLLMInferenceTrace_conv.csv --arrival=trace --time_scale=2 --duration=300\n"
      "  bfio_loadgen --profile=code --arrival=gamma --rate=40 --burstiness=0.5 --requests=2000 "
      "--json=out.json\n"
      "  bfio_loadgen --arrival=poisson --rate=40 --duration=60 --goodput=ttft:0.5,tpot:0.05 "
      "--html=run.html\n\n"
      "Latencies count from the time a request was due. Exit code: 0 success, 1 failed requests, 2 bad\n"
      "input, 3 a token stream violated the API's contract, 130 interrupted (with the results so far)."};
  return *info;
}

// Waits for a connection. A signal ends the wait early with OK; the run then sends nothing.
absl::Status Connect(const std::shared_ptr<grpc::Channel>& channel, const Options& options) {
  const absl::Time give_up = MonotonicNow() + options.connect_timeout;
  for (ConnectionWait wait(channel); !wait.Connected(); absl::SleepFor(wait.pause())) {
    if (ShutdownSignal::Requested()) return absl::OkStatus();
    if (MonotonicNow() >= give_up) {
      return absl::UnavailableError(absl::StrCat("no router answers at ", options.target, " within ",
                                                 absl::FormatDuration(options.connect_timeout)));
    }
  }
  return absl::OkStatus();
}

// Reads the group's sums. On an error it logs the reason and returns nothing, because the run is useful
// without them.
std::optional<v1::ClusterState> TryReadBarrier(const std::shared_ptr<grpc::Channel>& admin,
                                               const Login& login) {
  if (admin == nullptr) return std::nullopt;
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kAdminTimeout));
  login.Present(context);
  v1::ClusterState state;
  const grpc::Status status = v1::Admin::NewStub(admin)->GetClusterState(&context, {}, &state);
  if (status.ok()) return state;
  spdlog::warn("no barrier measurements: {}", std::string(FromGrpcStatus(status).message()));
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

absl::StatusOr<int> RunProgram(const Options& options) {
  BFIO_ASSIGN_OR_RETURN(Trace trace, LoadTrace(options));
  BFIO_ASSIGN_OR_RETURN(Schedule schedule, Schedule::Create(options, std::move(trace)));

  BFIO_ASSIGN_OR_RETURN(const Login login,
                        MakeLogin(options.target, "client", options.client_tls, options.client_token_file));
  BFIO_ASSIGN_OR_RETURN(const Login admin_login,
                        MakeLogin(options.admin, "admin", options.admin_tls, options.admin_token_file));

  const std::shared_ptr<grpc::Channel> channel =
      NewChannel(ParseTarget(options.target)->ToString(), 0, login.credentials);
  BFIO_RETURN_IF_ERROR(Connect(channel, options));
  const std::shared_ptr<grpc::Channel> admin =
      options.admin.empty() ? nullptr
                            : NewChannel(ParseTarget(options.admin)->ToString(), 0, admin_login.credentials);

  const absl::Time started_at = absl::Now();
  const uint64_t id =
      Mix64(static_cast<uint64_t>(absl::ToUnixNanos(started_at)) ^ static_cast<uint64_t>(getpid()));
  Progress progress(isatty(STDERR_FILENO) != 0);
  const std::optional<v1::ClusterState> before = TryReadBarrier(admin, admin_login);
  Runner runner(
      options, login, schedule, channel, absl::StrCat("lg-", absl::Hex(id, absl::kZeroPad16)),
      [] { return ShutdownSignal::Requested(); }, progress);
  const Results results = runner.Run();
  progress.Clear();
  const bool interrupted = ShutdownSignal::Requested();

  Report report = {.options = options,
                   .trace = schedule.trace(),
                   .results = results,
                   .version = Version(),
                   .started_at = started_at,
                   .interrupted = interrupted};
  const std::optional<v1::ClusterState> after =
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
  Options options;
  OptionTable table;
  AddOptions(table, options);
  InitWithoutArguments(argc, argv, Info(), table);
  absl::Status status = InitLogging(Info().name, options.log_level, options.log_format);
  if (!status.ok()) return ExitWith(Info(), status);
  InstallGrpcLog();
  ShutdownSignal::Install();
  status = Validate(options);
  if (!status.ok()) return ExitWith(Info(), status);
  const absl::StatusOr<int> code = RunProgram(options);
  return code.ok() ? *code : ExitWith(Info(), code.status());
}

}  // namespace
}  // namespace bfio::loadgen

int main(int argc, char** argv) {
  return bfio::loadgen::Main(argc, argv);
}
