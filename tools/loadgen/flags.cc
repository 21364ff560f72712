#include "tools/loadgen/flags.h"

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/address.h"
#include "common/workload/trace.h"

namespace bfio::loadgen {
namespace {

const Within kPerSecond(0, 1e9);
const Within kTimeout(absl::Milliseconds(1), absl::Hours(24));

absl::Status CheckAddress(const char* flag, const std::string& address) {
  const auto parsed = ParseTarget(address);
  return parsed.ok() ? absl::OkStatus()
                     : absl::InvalidArgumentError(absl::StrCat(flag, ": ", parsed.status().message()));
}

absl::Status CheckWritable(const char* flag, const std::string& path) {
  if (path.empty() || std::ofstream(path, std::ios::app)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, ": cannot write ", path));
}

// Checks the output files before the run, so that a long run does not fail at its end because of a wrong
// path.
absl::Status CheckFiles(const Options& o) {
  if (o.json != "-") {
    if (absl::Status status = CheckWritable("--json", o.json); !status.ok()) return status;
  }
  if (absl::Status status = CheckWritable("--save", o.save); !status.ok()) return status;
  return CheckWritable("--html", o.report);
}

void AddTraffic(OptionTable& table, Options& o) {
  table.Add("target", &o.target, "HOST:PORT of the router's client API");
  table.Add("trace", &o.trace,
            "trace file: Azure, BurstGPT, Mooncake or generic columns, detected by the header");
  table.Add("profile", &o.profile,
            absl::StrCat("built-in lengths instead of a trace, conversation when neither is given: ",
                         absl::StrJoin(ProfileNames(), ", ")));
  table.Add(
      "arrival", &o.arrival,
      "closed: --concurrency requests at any time; open loop: trace (its own times), poisson or gamma "
      "(--rate), ramp (--rate to --rate_to over --duration), step (each of --rates for --step_duration), "
      "sweep (the same, and everything ends before the next rate, until two in a row are not held)");
  table.Add("rate", &o.rate, kPerSecond,
            "open loop: requests per second; with --arrival=trace the trace is stretched to it (0: its own "
            "speed)");
  table.Add("burstiness", &o.burstiness, Within(1e-3, 1e3),
            "shape of the gaps of gamma, ramp, step and sweep: 1 is Poisson, below 1 burstier, above 1 more "
            "even");
  table.Add("time_scale", &o.time_scale, Within(1e-6, 1e6),
            "open loop: due times are divided by it, 2 sends twice as fast");
  table.Add("rate_to", &o.rate_to, kPerSecond, "--arrival=ramp: requests per second at the end");
  table.AddParsed("rates", &o.rates, "",
                  "--arrival=step and sweep: requests per second, like 5,10,20 or FROM:TO:STEP; a sweep's "
                  "ascend",
                  ParseRates);
  table.Add("step_duration", &o.step_duration_s, Within(1e-3, 1e6),
            "--arrival=step and sweep: seconds for each rate; use several times a request's duration");
  table.AddParsed(
      "goodput", &o.goodput, "",
      "latency limits in seconds, like ttft:0.5,tpot:0.05,e2e:30; reports the requests that meet all of them",
      ParseGoodput);
  table.Add("concurrency", &o.concurrency, Within(1, o.max_in_flight),
            "closed loop: requests under way at any time");
  table.Add("max_new_tokens", &o.max_new_tokens,
            "limit of every request, which the model ends: its length is not known in advance, and is that "
            "of the trace or profile if the workers have --ends_by_seed; 0: exactly those lengths");
  table.AddParsed("agents", &o.agents, "",
                  "agents of these shapes, one after the other, instead of single requests: sequence:CALLS, "
                  "fork_join:BRANCHES, cycle:CALLS, like sequence:4,fork_join:3; each call is sent when "
                  "those before it are done; --rate, --concurrency and --requests count agents",
                  ParseAgents);
  table.Add("ttft_objective", &o.ttft_objective, Within(absl::ZeroDuration(), absl::Hours(1)),
            "objective for the time to first token, sent with each request; 0: none");
  table.Add("tpot_objective", &o.tpot_objective, Within(absl::ZeroDuration(), absl::Hours(1)),
            "objective for the time per output token, sent with each request; 0: none");
  table.Add("agent_timeout", &o.agent_timeout, Within(absl::ZeroDuration(), absl::Hours(24)),
            "--agents: deadline of an agent, after which its calls are refused or ended; 0: none");
  table.Add("requests", &o.requests,
            "requests to send; 0: until --duration, or one pass over the trace, or 1000 of a profile");
  table.Add("duration", &o.duration_s, Within(0, 1e9),
            "seconds after which no more requests are sent; 0: no limit");
  table.Add("seed", &o.seed, "seed of arrivals and profile lengths");
  table.Add("resume", &o.resume,
            "after a lost connection or UNAVAILABLE, resume the request where its stream broke");
  table.Add("timeout", &o.timeout, kTimeout, "time for one request, retries included");
  table.Add("connect_timeout", &o.connect_timeout, kTimeout, "time to reach the router at the start");
}

}  // namespace

void AddLoadgenOptions(OptionTable& table, Settings& settings) {
  Options& o = settings.options;
  AddTraffic(table, o);
  table.Add("admin", &o.admin,
            "HOST:PORT of the router's admin API; adds the group's barrier measurements to the result");
  table.Add("json", &o.json, "result file; - is standard output instead of the table");
  table.Add("save", &o.save, "result file with everything that the page shows, for bfio_loadgen compare");
  table.Add("html", &o.report, "HTML page with tables and charts; with --admin of the group too");
  table.AddParsed("client_tls", &settings.client_tls, "",
                  "client API: cert=FILE,key=FILE,ca=FILE, PEM: the CAs of the router's certificate, and the "
                  "generator's certificate and its key where they are required. Empty: plain text",
                  ParseTlsFiles);
  table.Add("client_token_file", &settings.client_token_file,
            "client API: file with the bearer token, where one is required");
  table.AddParsed("admin_tls", &settings.admin_tls, "", "admin API: as --client_tls", ParseTlsFiles);
  table.Add("admin_token_file", &settings.admin_token_file,
            "admin API: file with the bearer token, where one is required");
  table.Add("log_level", &settings.log_level, "trace, debug, info, warning or error");
  table.Add("log_format", &settings.log_format, "text or json");
}

absl::Status CheckOptions(const Options& options) {
  if (absl::Status status = Validate(options); !status.ok()) return status;
  if (absl::Status status = CheckAddress("--target", options.target); !status.ok()) return status;
  if (!options.admin.empty()) {
    if (absl::Status status = CheckAddress("--admin", options.admin); !status.ok()) return status;
  }
  return CheckFiles(options);
}

}  // namespace bfio::loadgen
