#include "router/frontend/vllm/vllm_service.h"

#include "router/frontend/gateway/gateway_service_impl.h"

namespace bfio::router {

vllm::pb::GetServerInfoResponse vllm::Wire::ServerInfo(const Loads& loads, gateway::RankView view,
                                                       absl::Duration uptime,
                                                       const gateway::EngineFacts& facts) {
  const gateway::EngineSize size = gateway::SizeOf(loads, view);
  GetServerInfoResponse out;
  out.set_active_requests(static_cast<uint32_t>(gateway::Clamped(size.requests)));
  out.set_uptime_seconds(absl::ToDoubleSeconds(uptime));
  out.set_server_type("vllm-grpc");
  out.set_data_parallel_size(gateway::Clamped(size.ranks));
  out.set_block_size(facts.page_tokens);
  if (!facts.dtype.empty()) out.set_model_dtype("torch." + facts.dtype);
  out.set_max_num_seqs(gateway::Clamped(size.slots));
  return out;
}

template class gateway::GenerateStream<vllm::Wire>;
template class gateway::GatewayService<vllm::Wire>;

}  // namespace bfio::router
