#include "chains/plan/output.h"

namespace bfio::plan {
namespace {

using nlohmann::ordered_json;

ordered_json ChainsJson(const Problem& problem, const core::ChainPlan& plan) {
  ordered_json chains = ordered_json::array();
  for (const core::ServerChain& chain : plan.chains) {
    ordered_json hops = ordered_json::array();
    for (const core::ChainHop& hop : chain.hops) {
      hops.push_back({{"server", problem.servers[hop.server].name},
                      {"first_block", hop.range.first},
                      {"blocks", hop.range.count}});
    }
    chains.push_back({{"time_s", chain.time}, {"capacity", chain.capacity}, {"hops", hops}});
  }
  return chains;
}

}  // namespace

ordered_json PlanJson(const Problem& problem, const Plan& plan) {
  const core::ChainPlan& chosen = plan.chosen;
  ordered_json json = {{"demand_per_s", problem.demand.rate},
                       {"target_load", problem.demand.target_load},
                       {"blocks", problem.service.blocks},
                       {"block_gb", problem.service.block_size},
                       {"cache_gb", problem.service.cache_size},
                       {"reserve", plan.c()},
                       {"disjoint_chains", chosen.placement.chains.size()},
                       {"capacity", core::TotalCapacity(chosen.chains)},
                       {"rate_per_s", chosen.rate},
                       {"load", problem.demand.rate / chosen.rate},
                       {"meets_target", plan.meets_target},
                       {"response", {{"lower_s", plan.response.lower}, {"upper_s", plan.response.upper}}},
                       {"chains", ChainsJson(problem, chosen)}};
  ordered_json& servers = json["servers"] = ordered_json::array();
  for (size_t j = 0; j < problem.servers.size(); ++j) {
    const BlockRange& range = chosen.placement.ranges[j];
    servers.push_back({{"name", problem.servers[j].name},
                       {"memory_gb", problem.servers[j].memory},
                       {"communication_s", problem.servers[j].communication},
                       {"block_s", problem.servers[j].compute},
                       {"first_block", range.first},
                       {"blocks", range.count},
                       {"cache_slots", core::CacheSlots(problem.servers[j], problem.service, range)}});
  }
  return json;
}

}  // namespace bfio::plan
