// The options of one run of the load generator, as plain values and as flags with one record for each.
//
// Purpose: everything that can be wrong is found here, before the first packet is sent. Threads: call from
// main, before threads are started.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/config/options.h"
#include "common/net/tls.h"
#include "tools/loadgen/results.h"

namespace bfio::loadgen {

// Maximum number of streams under way. Open-loop requests due beyond it wait, and their latencies include the
// wait.
inline constexpr uint32_t kMaxInFlight = 8192;

struct Options {
  // HOST:PORT of the router's client API, and of its admin API ("": no barrier measurements).
  std::string target = "127.0.0.1:50051";
  std::string admin;
  // At most one of the two; profile "conversation" when both are empty.
  std::string trace;
  std::string profile;
  // "closed": `concurrency` requests at any time, each followed by the next. "trace", "poisson", "gamma":
  // open loop, requests are sent when they are due, however many are under way.
  std::string arrival = "closed";
  // Open loop only; see common/workload/arrivals.h.
  double rate = 0;
  double burstiness = 1;
  double time_scale = 1;
  uint32_t concurrency = 64;
  // max_new_tokens of every request; the model ends the request, so its length is not known in advance. 0:
  // requests have exactly the lengths of the trace or profile.
  uint32_t max_new_tokens = 0;
  // Latency objective of requests; zero: none.
  absl::Duration ttft_objective;
  // The run ends at whichever comes first; 0 is no limit. With neither: one pass over a trace, or 1,000
  // requests of a profile. Requests due `duration_s` or later after the start are not sent, and nothing is
  // sent more than a second after it (requests that were due and are then unsent are counted). Requests under
  // way are waited for.
  uint32_t requests = 0;
  double duration_s = 0;
  uint64_t seed = 1;
  // Result file; "-" is standard output (instead of the table), "" none.
  std::string json;
  // File for the report as an HTML page. "": none.
  std::string report;
  GoodputLimits goodput;
  // After a lost connection or UNAVAILABLE the request is resumed where its stream broke, until `timeout`.
  bool resume = false;
  // From the first attempt of a request to its end, retries included.
  absl::Duration timeout = absl::Minutes(5);
  absl::Duration connect_timeout = absl::Seconds(10);
  // TLS files and bearer tokens for the client API and the admin API. The flags have the prefixes that the
  // router's flags for the same links have.
  TlsFiles client_tls, admin_tls;
  std::string client_token_file, admin_token_file;
  std::string log_level = "info", log_format = "text";

  bool closed_loop() const { return arrival == "closed"; }
};

// `options` outlives the reading of `table`.
void AddOptions(OptionTable& table, Options& options);

// INVALID_ARGUMENT with one line for values that contradict each other, for addresses, and for files that
// cannot be written. AddOptions checks what has bounds of its own.
absl::Status Validate(const Options& options);

}  // namespace bfio::loadgen
