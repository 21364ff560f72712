#include "tools/loadgen/options.h"

#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/address.h"
#include "common/base/annotated.h"
#include "common/base/status_macros.h"
#include "common/workload/trace.h"

namespace bfio::loadgen {
namespace {

const Within kPerSecond(0, 1e9);
const Within kTimeout(absl::Milliseconds(1), absl::Hours(24));

absl::Status CheckAddress(const char* flag, const std::string& address) {
  return Annotated(flag, ParseTarget(address).status());
}

absl::Status CheckWritable(const char* flag, const std::string& path) {
  if (path.empty() || std::ofstream(path, std::ios::app)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, ": cannot write ", path));
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
            "timestamps), poisson or gamma (at --rate)");
  table.Add("rate", &o.rate, kPerSecond,
            "open loop: requests per second; --arrival=trace scales the trace's timestamps to this mean rate "
            "(0: does not scale them)");
  table.Add("burstiness", &o.burstiness, Within(1e-3, 1e3),
            "shape of the gamma-distributed gaps of gamma: 1 is Poisson, below 1 is burstier, above "
            "1 is more regular");
  table.Add("time_scale", &o.time_scale, Within(1e-6, 1e6),
            "open loop: divides the send times of all requests; 2 sends twice as fast");
  table.AddParsed("goodput", &o.goodput, "",
                  "latency limits in seconds, such as ttft:0.5,tpot:0.05,e2e:30; reports how many requests "
                  "meet all of them",
                  ParseGoodput);
  table.Add("concurrency", &o.concurrency, Within(1, kMaxInFlight),
            "closed loop: requests under way at any time");
  table.Add(
      "max_new_tokens", &o.max_new_tokens,
      "max_new_tokens of every request; the model may end it earlier, so the router does not know its "
      "length (workers with --sim=ends_by_seed end it at the length from the trace or profile); 0: each "
      "request generates exactly that length");
  table.Add("ttft_objective", &o.ttft_objective, Within(absl::ZeroDuration(), absl::Hours(1)),
            "objective for the time to first token, sent with each request; 0: none");
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

void AddOptions(OptionTable& table, Options& o) {
  AddTraffic(table, o);
  table.Add("admin", &o.admin,
            "HOST:PORT of the router's admin API; adds the group's barrier measurements to the result");
  table.Add("json", &o.json, "JSON result file; - prints JSON to standard output instead of the table");
  table.Add("html", &o.report, "HTML page with tables and charts");
  table.AddParsed("client_tls", &o.client_tls, "",
                  "TLS for the client API: cert=FILE,key=FILE,ca=FILE (PEM). ca: the CAs that signed the "
                  "router's certificate; cert and key: this client's own certificate, where the router "
                  "requires one. Empty: plain text",
                  ParseTlsFiles);
  table.Add("client_token_file", &o.client_token_file,
            "file with the bearer token for the client API, where the router requires one");
  table.AddParsed("admin_tls", &o.admin_tls, "", "TLS for the admin API, in the form of --client_tls",
                  ParseTlsFiles);
  table.Add("admin_token_file", &o.admin_token_file,
            "file with the bearer token for the admin API, where the router requires one");
  table.Add("log_level", &o.log_level, "trace, debug, info, warning or error");
  table.Add("log_format", &o.log_format, "text or json");
}

absl::Status Validate(const Options& o) {
  const bool gaps = o.arrival == "poisson" || o.arrival == "gamma";
  const std::string arrival = absl::StrCat("--arrival=", o.arrival),
                    cannot = " cannot be used with " + arrival;
  const std::pair<bool, std::string> rules[] = {
      {!gaps && o.arrival != "trace" && !o.closed_loop(),
       arrival + " is not one of trace, poisson, gamma, closed"},
      {o.closed_loop() && o.rate > 0, "--rate" + cannot + "; use --concurrency"},
      {o.closed_loop() && o.time_scale != 1, "--time_scale" + cannot},
      {gaps && o.rate == 0, arrival + " needs --rate"},
      {o.arrival != "gamma" && o.burstiness != 1, "--burstiness can be used only with --arrival=gamma"},
      {o.arrival == "trace" && o.trace.empty(), arrival + " needs --trace"},
      {!o.trace.empty() && !o.profile.empty(), "--trace and --profile cannot be used together"}};
  for (const auto& [broken, message] : rules) {
    if (broken) return absl::InvalidArgumentError(message);
  }
  BFIO_RETURN_IF_ERROR(CheckAddress("--target", o.target));
  if (!o.admin.empty()) BFIO_RETURN_IF_ERROR(CheckAddress("--admin", o.admin));
  // Before the run, so that a long run does not fail at its end because of a wrong path.
  if (o.json != "-") BFIO_RETURN_IF_ERROR(CheckWritable("--json", o.json));
  return CheckWritable("--html", o.report);
}

}  // namespace bfio::loadgen
