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

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bfio/v1/config.pb.h"
#include "common/base/clock.h"
#include "common/base/rng.h"
#include "common/base/shutdown.h"
#include "common/config/program.h"
#include "common/net/address.h"
#include "common/net/channel.h"
#include "common/net/grpc_log.h"
#include "common/telemetry/log.h"
#include "spdlog/spdlog.h"
#include "tools/loadgen/admin.h"
#include "tools/loadgen/barrier.h"
#include "tools/loadgen/login.h"
#include "tools/loadgen/options.h"
#include "tools/loadgen/progress.h"
#include "tools/loadgen/report.h"
#include "tools/loadgen/runner.h"
#include "tools/loadgen/schedule.h"

using bfio::loadgen::Options;

ABSL_FLAG(std::string, target, Options().target, "HOST:PORT of the router's client API");
ABSL_FLAG(std::string, admin, "",
          "HOST:PORT of the router's admin API; adds the group's barrier figures to the result");
ABSL_FLAG(std::string, trace, "",
          "trace file: Azure, BurstGPT, Mooncake or generic columns, told by the header");
ABSL_FLAG(std::string, profile, "",
          "built-in lengths instead of a trace: conversation, code or burstgpt; conversation when neither is "
          "given");
ABSL_FLAG(std::string, arrival, Options().arrival,
          "closed: --concurrency requests at any time; open loop: trace (its own times), poisson or gamma "
          "(--rate)");
ABSL_FLAG(
    double, rate, 0,
    "open loop: requests per second; with --arrival=trace the trace is stretched to it (0: its own speed)");
ABSL_FLAG(double, burstiness, 1,
          "shape of --arrival=gamma's gaps: 1 is Poisson, below 1 burstier, above 1 more even");
ABSL_FLAG(double, time_scale, 1, "open loop: due times are divided by it, 2 sends twice as fast");
ABSL_FLAG(uint32_t, concurrency, Options().concurrency, "closed loop: requests under way at any time");
ABSL_FLAG(uint32_t, requests, 0,
          "requests to send; 0: until --duration, or one pass over the trace, or 1000 of a profile");
ABSL_FLAG(double, duration, 0, "seconds after which nothing more is sent; 0: no such end");
ABSL_FLAG(uint64_t, seed, 1, "seed of arrivals and profile lengths");
ABSL_FLAG(std::string, json, "", "result file; - is standard output instead of the table");
ABSL_FLAG(uint32_t, connections, Options().connections, "connections the streams are spread over");
ABSL_FLAG(uint32_t, max_in_flight, Options().max_in_flight,
          "streams under way at most; what is due beyond it waits");
ABSL_FLAG(uint32_t, max_retries, Options().max_retries,
          "how often a request refused with RESOURCE_EXHAUSTED and a retry delay is sent again");
ABSL_FLAG(bool, resume, Options().resume,
          "after a lost connection or UNAVAILABLE, take the request up again where its stream broke");
ABSL_FLAG(absl::Duration, timeout, Options().timeout, "time for one request, retries included");
ABSL_FLAG(absl::Duration, connect_timeout, Options().connect_timeout,
          "time to reach the router at the start");
ABSL_FLAG(std::string, log_level, "info", "trace, debug, info, warning or error");
ABSL_FLAG(std::string, log_format, "text", "text or json");

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
      "--json=out.json\n\n"
      "Latencies count from the time a request was due. Exit code: 0 all well, 1 requests failed, 2 bad "
      "input,\n"
      "3 a stream broke the API's promises, 130 interrupted (what was measured is reported)."};
  return *info;
}

Options OptionsFromFlags() {
  return {.target = absl::GetFlag(FLAGS_target),
          .admin = absl::GetFlag(FLAGS_admin),
          .trace = absl::GetFlag(FLAGS_trace),
          .profile = absl::GetFlag(FLAGS_profile),
          .arrival = absl::GetFlag(FLAGS_arrival),
          .rate = absl::GetFlag(FLAGS_rate),
          .burstiness = absl::GetFlag(FLAGS_burstiness),
          .time_scale = absl::GetFlag(FLAGS_time_scale),
          .concurrency = absl::GetFlag(FLAGS_concurrency),
          .requests = absl::GetFlag(FLAGS_requests),
          .duration_s = absl::GetFlag(FLAGS_duration),
          .seed = absl::GetFlag(FLAGS_seed),
          .json = absl::GetFlag(FLAGS_json),
          .connections = absl::GetFlag(FLAGS_connections),
          .max_in_flight = absl::GetFlag(FLAGS_max_in_flight),
          .max_retries = absl::GetFlag(FLAGS_max_retries),
          .resume = absl::GetFlag(FLAGS_resume),
          .timeout = absl::GetFlag(FLAGS_timeout),
          .connect_timeout = absl::GetFlag(FLAGS_connect_timeout)};
}

// Everything that can be wrong before the first packet, so that a long run does not end in a wrong file name.
absl::Status CheckInput(const Options& options) {
  if (absl::Status status = Validate(options); !status.ok()) return status;
  if (auto address = ParseAddress(options.target); !address.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--target: ", address.status().message()));
  }
  if (!options.admin.empty()) {
    if (auto address = ParseAddress(options.admin); !address.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--admin: ", address.status().message()));
    }
  }
  if (!options.json.empty() && options.json != "-" && !std::ofstream(options.json, std::ios::app)) {
    return absl::InvalidArgumentError(absl::StrCat("--json: cannot write ", options.json));
  }
  return absl::OkStatus();
}

// Waits until every channel has a connection. A signal ends the waiting early, with OK: the run then sends
// nothing.
absl::Status Connect(const std::vector<std::shared_ptr<grpc::Channel>>& channels, const Options& options) {
  const absl::Time give_up = MonotonicNow() + options.connect_timeout;
  for (const auto& channel : channels) {
    for (;;) {
      // In slices, because nothing interrupts gRPC's waiting.
      const absl::Duration slice = std::min(absl::Milliseconds(200), give_up - MonotonicNow());
      if (channel->WaitForConnected(absl::ToChronoTime(absl::Now() + slice))) break;
      if (ShutdownSignal::Requested()) return absl::OkStatus();
      if (MonotonicNow() >= give_up) {
        return absl::UnavailableError(absl::StrCat("no router answers at ", options.target, " within ",
                                                   absl::FormatDuration(options.connect_timeout)));
      }
    }
  }
  return absl::OkStatus();
}

// The group's sums, or nothing after saying why: the run is worth having without them.
std::optional<BarrierReading> TryReadBarrier(const std::shared_ptr<grpc::Channel>& admin,
                                             const Login& login) {
  if (admin == nullptr) return std::nullopt;
  absl::StatusOr<BarrierReading> reading = ReadBarrier(admin, login, kAdminTimeout);
  if (reading.ok()) return *std::move(reading);
  spdlog::warn("no barrier figures: {}", std::string(reading.status().message()));
  return std::nullopt;
}

absl::Status WriteReport(const Report& report) {
  const std::string& path = report.options.json;
  if (path == "-") {
    std::fputs(ToJson(report).c_str(), stdout);
    return absl::OkStatus();
  }
  std::fputs(ToTable(report).c_str(), stdout);
  if (path.empty()) return absl::OkStatus();
  std::ofstream out(path, std::ios::trunc);
  out << ToJson(report);
  out.close();
  return out ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

absl::StatusOr<int> RunProgram(const Options& options) {
  if (absl::Status status = CheckInput(options); !status.ok()) return status;
  absl::StatusOr<Trace> trace = LoadTrace(options);
  if (!trace.ok()) return trace.status();
  absl::StatusOr<Schedule> schedule = Schedule::Create(options, *std::move(trace));
  if (!schedule.ok()) return schedule.status();

  const absl::StatusOr<Login> login = ClientLogin(options.target);
  if (!login.ok()) return login.status();
  const absl::StatusOr<Login> admin_login = AdminLogin(options.admin);
  if (!admin_login.ok()) return admin_login.status();

  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (uint32_t i = 0; i < options.connections; ++i) {
    channels.push_back(NewChannel(options.target, static_cast<int>(i), login->credentials));
  }
  if (absl::Status status = Connect(channels, options); !status.ok()) return status;
  const std::shared_ptr<grpc::Channel> admin =
      options.admin.empty() ? nullptr : NewChannel(options.admin, 0, admin_login->credentials);

  const absl::Time started_at = absl::Now();
  const uint64_t id =
      Mix64(static_cast<uint64_t>(absl::ToUnixNanos(started_at)) ^ static_cast<uint64_t>(getpid()));
  Progress progress(isatty(STDERR_FILENO) != 0);
  const std::optional<BarrierReading> before = TryReadBarrier(admin, *admin_login);
  Runner runner(
      options, *login, *schedule, channels, absl::StrCat("lg-", absl::Hex(id, absl::kZeroPad16)),
      [] { return ShutdownSignal::Requested(); }, progress);
  const Results results = runner.Run();
  progress.Clear();
  const bool interrupted = ShutdownSignal::Requested();

  Report report = {.options = options,
                   .trace = schedule->trace(),
                   .results = results,
                   .version = BFIO_VERSION,
                   .started_at = started_at,
                   .interrupted = interrupted};
  const std::optional<BarrierReading> after =
      before.has_value() ? TryReadBarrier(admin, *admin_login) : std::nullopt;
  if (after.has_value()) {
    absl::StatusOr<BarrierFigures> figures = Between(*before, *after);
    if (figures.ok()) report.barrier = *std::move(figures);
    if (!figures.ok()) spdlog::warn("{}", std::string(figures.status().message()));
  }
  if (absl::Status status = WriteReport(report); !status.ok()) return status;
  return ExitCode(results, interrupted);
}

int Main(int argc, char** argv) {
  const std::vector<std::string> rest =
      InitProgram(argc, argv, Info(), v1::LoadgenConfig::default_instance());
  if (!rest.empty())
    return ExitWith(Info(), absl::InvalidArgumentError(absl::StrCat("unexpected argument ", rest[0])));
  const absl::Status logging =
      InitLogging(Info().name, absl::GetFlag(FLAGS_log_level), absl::GetFlag(FLAGS_log_format));
  if (!logging.ok()) return ExitWith(Info(), logging);
  InstallGrpcLog();
  ShutdownSignal::Install();
  const absl::StatusOr<int> code = RunProgram(OptionsFromFlags());
  return code.ok() ? *code : ExitWith(Info(), code.status());
}

}  // namespace
}  // namespace bfio::loadgen

int main(int argc, char** argv) {
  return bfio::loadgen::Main(argc, argv);
}
