#include "research/chains/response_bound.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace bfio::sim {
namespace {

struct Offer {
  // Time of a block, and how many blocks of a job the server may have.
  double time = 0;
  double blocks = 0;
};

// The least time of `blocks` blocks.
double LeastTime(std::vector<Offer> offers, double blocks) {
  std::sort(offers.begin(), offers.end(), [](const Offer& a, const Offer& b) { return a.time < b.time; });
  double time = 0;
  for (const Offer& offer : offers) {
    const double here = std::min(blocks, offer.blocks);
    time += here * offer.time;
    blocks -= here;
  }
  return blocks > 1e-9 ? std::numeric_limits<double>::infinity() : time;
}

}  // namespace

double LeastResponse(absl::Span<const core::ChainServer> servers, const core::ChainService& service,
                     double demand) {
  std::vector<Offer> offers;
  std::vector<double> memory;
  for (const core::ChainServer& server : servers) {
    const auto most =
        static_cast<double>(core::WholeUnits(server.memory, service.block_size + service.cache_size));
    if (most < 1) continue;
    offers.push_back({server.compute + server.communication / most, most});
    memory.push_back(server.memory);
  }
  const double least = LeastTime(offers, service.blocks);
  for (size_t j = 0; j < offers.size(); ++j) {
    offers[j].blocks =
        std::min(offers[j].blocks, memory[j] / (service.block_size + service.cache_size * demand * least));
  }
  return LeastTime(std::move(offers), service.blocks);
}

}  // namespace bfio::sim
