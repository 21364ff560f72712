#include "chains/router/server_times.h"

#include <algorithm>
#include <numeric>

namespace bfio::router {
namespace {

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 2];
}

void LevelToMedian(std::vector<double>& times) {
  const double median = Median(times);
  for (double& time : times) {
    if (time <= median * (1 + kSameWithin) && median <= time * (1 + kSameWithin)) time = median;
  }
}

double Mean(absl::Span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

std::optional<std::vector<core::ServerTimes>> TimesOf(absl::Span<const ServerTelemetry> servers,
                                                      const core::JobShape& job) {
  const auto compute_of = [&](const ServerTelemetry& server) {
    return job.output_tokens * server.block_step_s + job.input_tokens * server.block_row_s;
  };
  std::vector<double> measured, compute, means, hops;
  for (const ServerTelemetry& server : servers) {
    if (server.block_step_s > 0) measured.push_back(compute_of(server));
    if (!server.round_trips_s.empty()) means.push_back(Mean(server.round_trips_s));
  }
  if (measured.empty()) return std::nullopt;
  const double usual = Median(measured);
  const double unknown = means.empty() ? 0 : Mean(means);
  for (const ServerTelemetry& server : servers) {
    const double round_trip = server.round_trips_s.empty() ? unknown : Mean(server.round_trips_s);
    compute.push_back(server.block_step_s > 0 ? compute_of(server) : usual);
    hops.push_back(job.output_tokens * round_trip / 2);
  }
  LevelToMedian(compute);
  LevelToMedian(hops);
  std::vector<core::ServerTimes> times(servers.size());
  for (size_t j = 0; j < servers.size(); ++j) times[j] = {compute[j], hops[j]};
  return times;
}

}  // namespace bfio::router
