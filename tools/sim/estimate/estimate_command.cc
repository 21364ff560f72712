#include <arpa/inet.h>

#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/resolve.h"
#include "common/base/shutdown.h"
#include "common/base/status_macros.h"
#include "common/http/http_client.h"
#include "nlohmann/json.hpp"
#include "tools/sim/commands.h"
#include "tools/sim/estimate/estimate.h"
#include "tools/sim/serve/serve_rule.h"

namespace bfio::sim {
namespace {

constexpr absl::Duration kProgress = absl::Seconds(10);
// Share of the samples that may fail.
constexpr double kMayFail = 0.2;

// An engine's server, and where its metrics are.
struct Source {
  std::string name, path;
  std::unique_ptr<HttpClient> client;
  // Those of its first answer; later ones must be the same.
  std::vector<int32_t> ranks;
};

absl::StatusOr<Address> ResolvedAddress(const Address& address) {
  const absl::StatusOr<AddressList> found = Resolve(address.host, address.port, 0);
  if (!found.ok())
    return absl::NotFoundError(absl::StrCat("--metrics: ", address.host, ": ", found.status().message()));
  char text[NI_MAXHOST] = {};
  getnameinfo((*found)->ai_addr, (*found)->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return Address{text, address.port};
}

// "[http://]HOST:PORT[/PATH]" or "..HOST:FIRST-LAST..", a port per server.
absl::Status AddSources(absl::string_view text, std::vector<Source>& sources) {
  const auto bad = [&] {
    return absl::InvalidArgumentError(absl::StrCat(
        "--metrics: '", text, "' is not http://HOST:PORT or http://HOST:FIRST-LAST, with an optional path"));
  };
  absl::string_view rest = absl::StripPrefix(text, "http://");
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string path(rest.substr(slash));
  if (path.empty() || path == "/") path = "/metrics";
  rest = rest.substr(0, slash);
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos) return bad();
  const std::vector<std::string> ports = absl::StrSplit(rest.substr(colon + 1), '-');
  int32_t first = 0, last = 0;
  if (ports.size() > 2 || !absl::SimpleAtoi(ports.front(), &first) ||
      !absl::SimpleAtoi(ports.back(), &last) || first < 1 || last > 65535 || first > last) {
    return bad();
  }
  for (int32_t port = first; port <= last; ++port) {
    const std::string name = absl::StrCat(rest.substr(0, colon), ":", port);
    const absl::StatusOr<Address> address = ParseAddress(name);
    if (!address.ok()) return bad();
    BFIO_ASSIGN_OR_RETURN(const Address resolved, ResolvedAddress(*address));
    sources.push_back({name, path, std::make_unique<HttpClient>(resolved), {}});
  }
  return absl::OkStatus();
}

// The metrics of all ranks, asked for at the same time.
absl::StatusOr<ClusterSample> Sample(std::vector<Source>& sources, absl::Time deadline) {
  struct Call {
    absl::Notification done;
    absl::StatusOr<HttpClient::Answer> answer = absl::UnknownError("");
  };
  std::vector<Call> calls(sources.size());
  ClusterSample sample{.at_s = absl::ToDoubleSeconds(MonotonicNow() - absl::UnixEpoch())};
  for (size_t i = 0; i < sources.size(); ++i) {
    sources[i].client->Get(sources[i].path, deadline,
                           [&call = calls[i]](absl::StatusOr<HttpClient::Answer> answer) {
                             call.answer = std::move(answer);
                             call.done.Notify();
                           });
  }
  absl::Status status;
  for (size_t i = 0; i < sources.size(); ++i) {
    calls[i].done.WaitForNotification();
    const absl::StatusOr<HttpClient::Answer>& answer = calls[i].answer;
    const auto fail = [&](absl::string_view why) {
      status.Update(absl::UnavailableError(absl::StrCat(sources[i].name, sources[i].path, ": ", why)));
    };
    if (!answer.ok()) {
      fail(answer.status().message());
      continue;
    }
    if (answer->status != 200) {
      fail(absl::StrCat("HTTP status ", answer->status));
      continue;
    }
    std::vector<int32_t> ranks;
    for (auto& [rank, metrics] : ReadEngineMetrics(answer->body)) {
      if (metrics.running < 0) continue;
      ranks.push_back(rank);
      sample.ranks.push_back(std::move(metrics));
    }
    if (sources[i].ranks.empty()) sources[i].ranks = ranks;
    if (ranks.empty()) fail("no metrics of vLLM or SGLang");
    if (ranks != sources[i].ranks) fail("other ranks than at the beginning");
  }
  BFIO_RETURN_IF_ERROR(status);
  return sample;
}

absl::StatusOr<std::vector<ClusterSample>> Watch(std::vector<Source>& sources, double seconds,
                                                 double interval) {
  std::vector<ClusterSample> samples;
  const absl::Time begin = MonotonicNow(), end = begin + absl::Seconds(seconds);
  absl::Time next = begin, say = begin;
  int64_t failed = 0;
  absl::Status status;
  for (; next <= end; next += absl::Seconds(interval)) {
    if (next > MonotonicNow() && ShutdownSignal::WaitFor(next - MonotonicNow())) {
      return absl::CancelledError("interrupted");
    }
    const absl::Time now = MonotonicNow();
    absl::StatusOr<ClusterSample> sample = Sample(sources, now + absl::Seconds(std::max(1.0, interval)));
    if (!sample.ok()) {
      status = sample.status();
      // The first one tells whether all is set up well.
      if (samples.empty()) return status;
      ++failed;
    } else {
      samples.push_back(*std::move(sample));
    }
    if (MonotonicNow() < say) continue;
    say += kProgress;
    std::cerr << absl::StrFormat(
        "%3.0f of %.0f s: %d ranks%s\n", absl::ToDoubleSeconds(now - begin), seconds,
        samples.back().ranks.size(),
        failed == 0 ? "" : absl::StrCat(", ", failed, " samples failed: ", status.message()));
  }
  if (static_cast<double>(failed) > kMayFail * static_cast<double>(samples.size())) return status;
  return samples;
}

std::string Row(absl::string_view name, const std::vector<double>& values, double factor = 1) {
  std::string row = absl::StrFormat("  %-24s", name);
  for (const double value : values) absl::StrAppendFormat(&row, " %10.4g", factor * value);
  return row + "\n";
}

void Print(const nlohmann::ordered_json& json) {
  const auto& is = json["measured"];
  const auto get = [](const nlohmann::ordered_json& of, const char* key) { return of.value(key, 0.0); };
  std::cout << absl::StrFormat(
      "%d ranks for %.0f s: %.3g requests/s, %.0f prompt tokens (%.0f %% cached) and %.0f output tokens on "
      "average\n\n",
      is["ranks"].get<int>(), get(is, "seconds"), get(is, "requests_per_s"), get(is, "prompt_tokens"),
      100 * get(is, "cached"), get(is, "output_tokens"));
  std::cout
      << Row("rank: running", is["running"]) << Row("  waiting", is["waiting"])
      << Row("  KV tokens", is["kv"])
      << absl::StrFormat(
             "\nA rank has %.1f %% fewer KV tokens than the fullest, on average. A step takes %.4g ms.\n",
             100 * get(is, "uneven"), 1e3 * get(is, "step_s"));
  if (json.contains("model")) {
    const auto& cost = json["cost"];
    std::cout << absl::StrFormat(
        "Of it %.4g ms are fixed; %.3g ns per KV token of the fullest rank; %.3g us per prompt token.\n"
        "%s.\n\n",
        1e3 * get(cost, "c_s"), 1e9 * get(cost, "k2_s_per_token"), 1e6 * get(cost, "a_s_per_token"),
        LoadOf(json));
    std::cout << absl::StrFormat("  %-24s %10s %10s %10s   %s\n", "", "measured", "simulated", "with bfio",
                                 "ratio (range)");
    for (const auto& [key, now] : json["model"].items()) {
      const bool share = absl::StartsWith(key, "idle");
      const auto number = [&](double value) {
        return absl::StrFormat("%10.4g", share ? 100 * value : value);
      };
      std::string line = absl::StrFormat("  %-24s %s %s %s", share ? absl::StrCat(key, ", %") : key,
                                         is.contains(key) ? number(is[key]) : std::string(9, ' ') + "-",
                                         number(now), number(json["bfio"][key]));
      if (const auto change = json["change"].find(key); change != json["change"].end()) {
        absl::StrAppendFormat(&line, "   %.3f (%.3f to %.3f)", get(*change, "mean"), get(*change, "least"),
                              get(*change, "most"));
      }
      std::cout << line << "\n";
    }
  }
  std::cout << "\nWould bfio help? " << json["answer"].get<std::string>() << ": "
            << json["why"].get<std::string>() << "\n";
}

}  // namespace

absl::Status RunEstimateCommand(const ReadOptions& read) {
  std::vector<std::string> metrics;
  double seconds = 300, interval = 1;
  std::vector<double> cost;
  std::string barrier = "auto", html;
  WorkloadOptions workload;
  EstimateOptions options;
  bool json = false;
  OptionTable table;
  table.Add("metrics", &metrics,
            "the engines' metrics, separated by commas: http://HOST:PORT, or http://HOST:FIRST-LAST for a "
            "port per rank");
  table.Add("seconds", &seconds, Within(10, 1e6), "how long to measure");
  table.Add("interval", &interval, Within(0.1, 60), "seconds between two samples");
  table.Add("slots", &options.slots, Within(1, 65536), "requests that a rank runs at a time (max_num_seqs)");
  table.Add("token_budget", &options.budget, Within(1, 1e9),
            "token budget of a step per rank (max_num_batched_tokens)");
  table.Add("rule", &options.rule, "rule of serve that is most like the present balancer");
  table.AddChoice("barrier", &options.barrier,
                  std::vector<std::pair<std::string, std::optional<bool>>>{
                      {"auto", std::nullopt}, {"true", true}, {"false", false}},
                  "whether ranks wait for each other at every step; auto: as their step times say");
  AddNumbers(table, "cost", &cost, Within(0, 1e9),
             "C,A,B0,K1,K2 as of serve, instead of the fitted step cost; none: fitted");
  table.Add("padded", &options.terms.padded,
            "every rank computes as many rows as the rank with most, as with expert parallelism");
  table.Add("prompt_price", &options.terms.prompt_s, Within(0, 1),
            "seconds that a step takes longer on all ranks if any rank computes prompt tokens");
  AddWorkload(table, workload, "the measured lengths");
  table.Add("runs", &options.runs, Within(1, 1000),
            "simulations, each with other arrivals, lengths and parts of the measurement");
  table.Add("requests", &options.requests, Within(1, 1e9), "requests that are counted in each, at least");
  table.Add("seed", &options.seed, "seed of the simulations");
  table.Add("html", &html, "file for the result as a page");
  AddJson(table, json);
  read(table);
  if (metrics.empty()) return absl::InvalidArgumentError("estimate needs --metrics=http://HOST:PORT,..");
  if (!cost.empty()) {
    BFIO_ASSIGN_OR_RETURN(options.cost, CostOf(cost));
  }
  BFIO_RETURN_IF_ERROR(MakeServeRule(options.rule, options.budget).status());
  if (!workload.trace.empty() || !workload.profile.empty()) {
    BFIO_ASSIGN_OR_RETURN(options.trace, ReadWorkload(workload, options.seed, 0));
  }
  std::vector<Source> sources;
  for (const std::string& of : metrics) BFIO_RETURN_IF_ERROR(AddSources(of, sources));
  const absl::StatusOr<std::vector<ClusterSample>> samples = Watch(sources, seconds, interval);
  for (Source& source : sources) source.client->Stop();
  BFIO_RETURN_IF_ERROR(samples.status());
  BFIO_ASSIGN_OR_RETURN(const ClusterMeasurements measured, Measure(*samples));
  BFIO_ASSIGN_OR_RETURN(const nlohmann::ordered_json result, Estimate(measured, options, [&](int32_t run) {
                          std::cerr << "simulation " << run + 1 << " of " << options.runs << "\n";
                          return !ShutdownSignal::Requested();
                        }));
  if (json) {
    PrintJson(result);
  } else {
    Print(result);
  }
  if (html.empty()) return absl::OkStatus();
  std::ofstream page(html);
  page << EstimatePage(result);
  page.close();
  return page ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", html));
}

}  // namespace bfio::sim
