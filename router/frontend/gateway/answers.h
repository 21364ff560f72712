// Answers to a gateway about the ranks and the model. A gateway sees all ranks as one engine of data-parallel
// size 1 with their total load, because the router chooses a rank better than a gateway could. Pure; any
// thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "engines/smg_common.pb.h"
#include "router/frontend/request_handler.h"

namespace bfio::router::gateway {

namespace common_pb = ::smg::grpc::common;

// The wire's integers are signed and have 32 bits.
inline int32_t Clamped(int64_t value) {
  return static_cast<int32_t>(std::clamp<int64_t>(value, 0, std::numeric_limits<int32_t>::max()));
}

// The load of all ranks together.
RankLoad SumOf(const Loads& loads);
// Share of the KV memory that is in use, 0 to 1.
double TokenUsage(const RankLoad& load);
// Without `sample`, which counts the records of a stream.
common_pb::EngineLoad LoadRecord(const Loads& loads);

}  // namespace bfio::router::gateway
