#include "tools/loadgen/flags.h"

#include <cstdint>
#include <fstream>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/address.h"

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
          "(--rate), ramp (--rate to --rate_to over --duration), step (each of --rates for --step_duration), "
          "sweep (the same, and everything ends before the next rate, until two in a row are not held)");
ABSL_FLAG(
    double, rate, 0,
    "open loop: requests per second; with --arrival=trace the trace is stretched to it (0: its own speed)");
ABSL_FLAG(
    double, burstiness, 1,
    "shape of the gaps of gamma, ramp, step and sweep: 1 is Poisson, below 1 burstier, above 1 more even");
ABSL_FLAG(double, time_scale, 1, "open loop: due times are divided by it, 2 sends twice as fast");
ABSL_FLAG(double, rate_to, 0, "--arrival=ramp: requests per second at the end");
ABSL_FLAG(std::string, rates, "",
          "--arrival=step and sweep: requests per second, like 5,10,20 or FROM:TO:STEP; a sweep's ascend");
ABSL_FLAG(double, step_duration, Options().step_duration_s,
          "--arrival=step and sweep: seconds for each rate; several times what a request takes");
ABSL_FLAG(std::string, goodput, "",
          "limits a request has to meet to be good, in seconds, like ttft:0.5,tpot:0.05,e2e:30");
ABSL_FLAG(double, attainment, Options().attainment,
          "share of requests within --goodput that a rate of ramp, step or sweep has to keep to be held");
ABSL_FLAG(uint32_t, concurrency, Options().concurrency, "closed loop: requests under way at any time");
ABSL_FLAG(uint32_t, max_new_tokens, 0,
          "what every request may make, the model ending it: its length is not known beforehand; 0: the "
          "lengths of the trace or profile, exactly");
ABSL_FLAG(
    std::string, agents, "",
    "agents of these shapes, in turn, instead of single requests: sequence:CALLS, fork_join:BRANCHES, like "
    "sequence:4,fork_join:3; each call is sent when those before it are done; --rate, --concurrency and "
    "--requests count agents");
ABSL_FLAG(absl::Duration, ttft_objective, absl::ZeroDuration(),
          "requests ask for their first token within this (0: they do not)");
ABSL_FLAG(absl::Duration, tpot_objective, absl::ZeroDuration(),
          "requests ask for a token every so often (0: they do not)");
ABSL_FLAG(absl::Duration, agent_timeout, absl::ZeroDuration(),
          "--agents: an agent is of no use after this (0: no such end); its calls are refused or ended then");
ABSL_FLAG(uint32_t, requests, 0,
          "requests to send; 0: until --duration, or one pass over the trace, or 1000 of a profile");
ABSL_FLAG(double, duration, 0, "seconds after which nothing more is sent; 0: no such end");
ABSL_FLAG(uint64_t, seed, 1, "seed of arrivals and profile lengths");
ABSL_FLAG(std::string, json, "", "result file; - is standard output instead of the table");
ABSL_FLAG(std::string, save, "",
          "result file with everything that the report shows, for bfio_loadgen compare");
ABSL_FLAG(std::string, report, "", "HTML page with tables and charts; with --admin of the group too");
ABSL_FLAG(std::string, html, "", "another name of --report");
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

namespace bfio::loadgen {
namespace {

absl::Status CheckAddress(const char* flag, const std::string& address) {
  const auto parsed = ParseTarget(address);
  return parsed.ok() ? absl::OkStatus()
                     : absl::InvalidArgumentError(absl::StrCat(flag, ": ", parsed.status().message()));
}

absl::Status CheckWritable(const char* flag, const std::string& path) {
  if (path.empty() || std::ofstream(path, std::ios::app)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, ": cannot write ", path));
}

// Files the run ends with, so that a long one does not end in a wrong name.
absl::Status CheckFiles(const Options& o) {
  if (o.json != "-") {
    if (absl::Status status = CheckWritable("--json", o.json); !status.ok()) return status;
  }
  if (absl::Status status = CheckWritable("--save", o.save); !status.ok()) return status;
  return CheckWritable("--report", o.report);
}

}  // namespace

absl::StatusOr<std::string> ReportPath() {
  const std::string report = absl::GetFlag(FLAGS_report), html = absl::GetFlag(FLAGS_html);
  if (!report.empty() && !html.empty() && report != html) {
    return absl::InvalidArgumentError("--html is another name of --report; give one of them");
  }
  return report.empty() ? html : report;
}

absl::StatusOr<Options> OptionsFromFlags() {
  const absl::StatusOr<GoodputLimits> goodput = ParseGoodput(absl::GetFlag(FLAGS_goodput));
  if (!goodput.ok()) return goodput.status();
  absl::StatusOr<std::vector<double>> rates = std::vector<double>();
  if (const std::string text = absl::GetFlag(FLAGS_rates); !text.empty()) rates = ParseRates(text);
  if (!rates.ok()) return rates.status();
  absl::StatusOr<std::vector<AgentShape>> agents = std::vector<AgentShape>();
  if (const std::string text = absl::GetFlag(FLAGS_agents); !text.empty()) agents = ParseAgents(text);
  if (!agents.ok()) return absl::InvalidArgumentError(absl::StrCat("--agents: ", agents.status().message()));
  absl::StatusOr<std::string> report = ReportPath();
  if (!report.ok()) return report.status();
  Options options = {.target = absl::GetFlag(FLAGS_target),
                     .admin = absl::GetFlag(FLAGS_admin),
                     .trace = absl::GetFlag(FLAGS_trace),
                     .profile = absl::GetFlag(FLAGS_profile),
                     .arrival = absl::GetFlag(FLAGS_arrival),
                     .rate = absl::GetFlag(FLAGS_rate),
                     .burstiness = absl::GetFlag(FLAGS_burstiness),
                     .time_scale = absl::GetFlag(FLAGS_time_scale),
                     .rate_to = absl::GetFlag(FLAGS_rate_to),
                     .rates = *std::move(rates),
                     .step_duration_s = absl::GetFlag(FLAGS_step_duration),
                     .concurrency = absl::GetFlag(FLAGS_concurrency),
                     .max_new_tokens = absl::GetFlag(FLAGS_max_new_tokens),
                     .agents = *std::move(agents),
                     .ttft_objective = absl::GetFlag(FLAGS_ttft_objective),
                     .tpot_objective = absl::GetFlag(FLAGS_tpot_objective),
                     .agent_timeout = absl::GetFlag(FLAGS_agent_timeout),
                     .requests = absl::GetFlag(FLAGS_requests),
                     .duration_s = absl::GetFlag(FLAGS_duration),
                     .seed = absl::GetFlag(FLAGS_seed),
                     .json = absl::GetFlag(FLAGS_json),
                     .save = absl::GetFlag(FLAGS_save),
                     .report = *std::move(report),
                     .goodput = *goodput,
                     .attainment = absl::GetFlag(FLAGS_attainment),
                     .connections = absl::GetFlag(FLAGS_connections),
                     .max_in_flight = absl::GetFlag(FLAGS_max_in_flight),
                     .max_retries = absl::GetFlag(FLAGS_max_retries),
                     .resume = absl::GetFlag(FLAGS_resume),
                     .timeout = absl::GetFlag(FLAGS_timeout),
                     .connect_timeout = absl::GetFlag(FLAGS_connect_timeout)};
  if (absl::Status status = Validate(options); !status.ok()) return status;
  if (absl::Status status = CheckAddress("--target", options.target); !status.ok()) return status;
  if (!options.admin.empty()) {
    if (absl::Status status = CheckAddress("--admin", options.admin); !status.ok()) return status;
  }
  if (absl::Status status = CheckFiles(options); !status.ok()) return status;
  return options;
}

}  // namespace bfio::loadgen
