#include "router/frontend/sglang/sglang_service.h"

#include "router/frontend/gateway/gateway_service_impl.h"

namespace bfio::router {

sglang::pb::AbortResponse sglang::Wire::Aborted(bool found) {
  AbortResponse out;
  out.set_success(found);
  out.set_message(found ? "aborted" : "no such request");
  return out;
}

// Gateways read the engine's sizes from its arguments.
sglang::pb::GetServerInfoResponse sglang::Wire::ServerInfo(const Loads& loads, gateway::RankView view,
                                                           absl::Duration uptime,
                                                           const gateway::EngineFacts&) {
  const gateway::EngineSize size = gateway::SizeOf(loads, view);
  GetServerInfoResponse out;
  auto& args = *out.mutable_server_args()->mutable_fields();
  args["dp_size"].set_number_value(static_cast<double>(size.ranks));
  args["max_running_requests"].set_number_value(static_cast<double>(size.slots));
  out.set_active_requests(gateway::Clamped(size.requests));
  out.set_uptime_seconds(absl::ToDoubleSeconds(uptime));
  out.set_sglang_version(loads.version);
  out.set_server_type("grpc");
  out.mutable_start_time()->set_seconds(absl::ToUnixSeconds(loads.timestamp - uptime));
  out.set_max_total_num_tokens(gateway::Clamped(size.max_tokens));
  return out;
}

absl::StatusOr<sglang::pb::GetLoadsResponse> sglang::Wire::LoadsResponse(const Loads& loads,
                                                                         gateway::RankView view,
                                                                         std::optional<int32_t> rank) {
  absl::StatusOr<GetLoadsResponse> out = gateway::LoadsOf<GetLoadsResponse>(loads, view, rank);
  if (!out.ok() || out->loads().empty()) return out;
  pb::AggregateMetrics& all = *out->mutable_aggregate();
  for (const pb::SchedulerLoad& load : out->loads()) {
    all.set_total_running_reqs(all.total_running_reqs() + load.num_running_reqs());
    all.set_total_waiting_reqs(all.total_waiting_reqs() + load.num_waiting_reqs());
    all.set_total_reqs(all.total_reqs() + load.num_total_reqs());
    all.set_avg_token_usage(all.avg_token_usage() + load.token_usage() / out->loads_size());
    all.set_avg_throughput(all.avg_throughput() + load.gen_throughput() / out->loads_size());
    all.set_avg_utilization(all.avg_utilization() + load.utilization() / out->loads_size());
  }
  return out;
}

template class gateway::GenerateStream<sglang::Wire>;
template class gateway::GatewayService<sglang::Wire>;

}  // namespace bfio::router
