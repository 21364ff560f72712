// What several simulations need: runs in parallel, results as JSON.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "common/workload/trace.h"
#include "nlohmann/json.hpp"

// Fields of a struct as members of a JSON object, in both directions; use it in the namespace of the struct.
#define BFIO_JSON_OF(Type, ...)                                                                 \
  inline void to_json(nlohmann::ordered_json& nlohmann_json_j, const Type& nlohmann_json_t) {   \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_TO, __VA_ARGS__))                    \
  }                                                                                             \
  inline void from_json(const nlohmann::ordered_json& nlohmann_json_j, Type& nlohmann_json_t) { \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_FROM, __VA_ARGS__))                  \
  }

namespace bfio::sim {

// Calls work(0) .. work(count - 1), each once, in `threads` threads.
inline void RunParallel(int32_t threads, size_t count, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> others;
  for (int32_t t = 1; t < threads; ++t) others.emplace_back(run);
  run();
  for (std::thread& thread : others) thread.join();
}

inline int64_t LongestOutput(const Trace& trace) {
  int64_t longest = 1;
  for (const TraceRequest& request : trace.requests) longest = std::max(longest, request.output_tokens);
  return longest;
}

}  // namespace bfio::sim
