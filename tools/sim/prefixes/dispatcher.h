// The interface of rules that place requests on ranks in the simulation of prefix caches. Threads: one.
// Units: tokens.
#ifndef BFIO_TOOLS_SIM_PREFIXES_DISPATCHER_H_
#define BFIO_TOOLS_SIM_PREFIXES_DISPATCHER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/sim/prefixes/block_pool.h"
#include "tools/sim/prefixes/engine_model.h"
#include "tools/sim/prefixes/prefix_run.h"

namespace bfio::sim {

struct Dispatch {
  const PrefixRequest* request = nullptr;
  int32_t rank = 0;
};

class PrefixDispatcher {
 public:
  virtual ~PrefixDispatcher() = default;
  // A request has arrived; a rank has ended a step. Both return the requests to send to ranks now.
  virtual std::vector<Dispatch> Arrived(const PrefixRequest& request) = 0;
  virtual std::vector<Dispatch> Stepped(int32_t rank, const EngineStep& step) = 0;
  virtual int64_t waiting() const { return 0; }
  // The level of the ranks' next steps (EngineModel::SetLevel).
  virtual std::optional<double> level_s() const { return std::nullopt; }
  // Prompt tokens expected in the ranks' caches, and how many of them were there; 0: no expectations.
  virtual int64_t expected_tokens() const { return 0; }
  virtual int64_t found_tokens() const { return 0; }
};

// Uses the router's core with the options' policy; requests wait in its pool. INVALID_ARGUMENT: no such
// policy.
absl::StatusOr<std::unique_ptr<PrefixDispatcher>> MakeClusterDispatcher(
    const PrefixRunOptions& options, const std::vector<EngineModel>& ranks);
// A rule that sends each request to a rank on arrival (direct_dispatchers.cc). Null: no such rule.
std::unique_ptr<PrefixDispatcher> MakeDirectDispatcher(const std::string& rule,
                                                       const std::vector<EngineModel>& ranks);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_PREFIXES_DISPATCHER_H_
