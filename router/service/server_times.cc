#include "router/service/server_times.h"

#include <algorithm>
#include <numeric>

namespace bfio::router {
namespace {

void LevelToMedian(std::vector<double>& times) {
  std::vector<double> sorted = times;
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[(sorted.size() - 1) / 2];
  for (double& time : times) {
    if (time <= median * (1 + kAlike) && median <= time * (1 + kAlike)) time = median;
  }
}

double Mean(absl::Span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

std::optional<std::vector<ServerTimes>> TimesOf(absl::Span<const ServerFigures> servers,
                                                const core::JobShape& job) {
  std::vector<double> compute, means, hops;
  for (const ServerFigures& server : servers) {
    if (server.block_step_s <= 0) return std::nullopt;
    compute.push_back(job.output_tokens * server.block_step_s + job.input_tokens * server.block_row_s);
    if (!server.round_trips_s.empty()) means.push_back(Mean(server.round_trips_s));
  }
  if (compute.empty()) return std::nullopt;
  const double unknown = means.empty() ? 0 : Mean(means);
  for (const ServerFigures& server : servers) {
    const double round_trip = server.round_trips_s.empty() ? unknown : Mean(server.round_trips_s);
    hops.push_back(job.output_tokens * round_trip / 2);
  }
  LevelToMedian(compute);
  LevelToMedian(hops);
  std::vector<ServerTimes> times(servers.size());
  for (size_t j = 0; j < servers.size(); ++j) times[j] = {compute[j], hops[j]};
  return times;
}

}  // namespace bfio::router
