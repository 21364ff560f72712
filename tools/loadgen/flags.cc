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
  return CheckWritable("--html", o.report);
}

void AddTraffic(OptionTable& table, Options& o) {
  table.Add("target", &o.target, "HOST:PORT of the router's client API");
  table.Add(
      "trace", &o.trace,
      "trace file with Azure, BurstGPT, Mooncake or generic columns; the format is detected from the header");
  table.Add(
      "profile", &o.profile,
      absl::StrCat("built-in length distribution instead of a trace; conversation if neither is given: ",
                   absl::StrJoin(ProfileNames(), ", ")));
  table.Add("arrival", &o.arrival,
            "closed loop: closed (keeps --concurrency requests under way); open loop: trace (the trace's "
            "timestamps), poisson or gamma (at --rate), ramp (from --rate to --rate_to over --duration), "
            "step (each of --rates for --step_duration), sweep (as step, but waits for all requests before "
            "the next rate and stops after two rates in a row that were not held)");
  table.Add("rate", &o.rate, kPerSecond,
            "open loop: requests per second; --arrival=trace scales the trace's timestamps to this mean rate "
            "(0: does not scale them)");
  table.Add("burstiness", &o.burstiness, Within(1e-3, 1e3),
            "shape of the gamma-distributed gaps of gamma, ramp, step and sweep: 1 is Poisson, below 1 is "
            "burstier, above 1 is more regular");
  table.Add("time_scale", &o.time_scale, Within(1e-6, 1e6),
            "open loop: divides the send times of all requests; 2 sends twice as fast");
  table.Add("rate_to", &o.rate_to, kPerSecond, "--arrival=ramp: requests per second at the end");
  table.AddParsed(
      "rates", &o.rates, "",
      "--arrival=step and sweep: requests per second, such as 5,10,20 or FROM:TO:STEP; ascending for sweep",
      ParseRates);
  table.Add("step_duration", &o.step_duration_s, Within(1e-3, 1e6),
            "--arrival=step and sweep: seconds for each rate; use several times a request's duration");
  table.AddParsed("goodput", &o.goodput, "",
                  "latency limits in seconds, such as ttft:0.5,tpot:0.05,e2e:30; reports how many requests "
                  "meet all of them",
                  ParseGoodput);
  table.Add("concurrency", &o.concurrency, Within(1, o.max_in_flight),
            "closed loop: requests under way at any time");
  table.Add(
      "max_new_tokens", &o.max_new_tokens,
      "max_new_tokens of every request; the model may end it earlier, so the router does not know its "
      "length (workers with --sim=ends_by_seed end it at the length from the trace or profile); 0: each "
      "request generates exactly that length");
  table.AddParsed("agents", &o.agents, "",
                  "sends agents instead of single requests, cycling through these shapes: sequence:CALLS, "
                  "fork_join:BRANCHES or cycle:CALLS, such as sequence:4,fork_join:3; a call is sent when "
                  "the calls that it depends on are done; --rate, --concurrency and --requests count agents",
                  ParseAgents);
  table.Add("ttft_objective", &o.ttft_objective, Within(absl::ZeroDuration(), absl::Hours(1)),
            "objective for the time to first token, sent with each request; 0: none");
  table.Add("agent_timeout", &o.agent_timeout, Within(absl::ZeroDuration(), absl::Hours(24)),
            "--agents: deadline of a whole agent, after which the router rejects or ends its calls; 0: none");
  table.Add("requests", &o.requests,
            "requests to send; 0: until --duration, or without it one pass over the trace or 1000 requests "
            "of a profile");
  table.Add("duration", &o.duration_s, Within(0, 1e9),
            "seconds after which no more requests are sent; 0: no limit");
  table.Add("seed", &o.seed, "seed of arrivals and profile lengths");
  table.Add("resume", &o.resume,
            "after a lost connection or UNAVAILABLE, resume the request after the last token received");
  table.Add("timeout", &o.timeout, kTimeout, "timeout of one request, including retries");
  table.Add("connect_timeout", &o.connect_timeout, kTimeout,
            "timeout for connecting to the router at the start");
}

}  // namespace

void AddLoadgenOptions(OptionTable& table, Settings& settings) {
  Options& o = settings.options;
  AddTraffic(table, o);
  table.Add("admin", &o.admin,
            "HOST:PORT of the router's admin API; adds the group's barrier measurements to the result");
  table.Add("json", &o.json, "JSON result file; - prints JSON to standard output instead of the table");
  table.Add("html", &o.report, "HTML page with tables and charts");
  table.AddParsed("client_tls", &settings.client_tls, "",
                  "TLS for the client API: cert=FILE,key=FILE,ca=FILE (PEM). ca: the CAs that signed the "
                  "router's certificate; cert and key: this client's own certificate, where the router "
                  "requires one. Empty: plain text",
                  ParseTlsFiles);
  table.Add("client_token_file", &settings.client_token_file,
            "file with the bearer token for the client API, where the router requires one");
  table.AddParsed("admin_tls", &settings.admin_tls, "", "TLS for the admin API, in the form of --client_tls",
                  ParseTlsFiles);
  table.Add("admin_token_file", &settings.admin_token_file,
            "file with the bearer token for the admin API, where the router requires one");
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
