#include "tools/sim/experiment/wait_loads.h"

namespace bfio::sim::wait {

std::vector<core::RequestType> TwoTypes() {
  return {{1000, 10, 10}, {1000, 10, 20}};
}

std::vector<core::RequestType> FourTypes() {
  return {{20, 10, 20}, {40, 10, 40}, {80, 10, 80}, {160, 10, 160}};
}

std::vector<core::RequestType> Lmsys() {
  std::vector<core::RequestType> types;
  for (const double rate : {23, 11, 8, 7, 6, 4, 3, 2, 1, 1})
    types.push_back({rate, 60, 50 * static_cast<int64_t>(types.size() + 1)});
  return types;
}

double LoadOf(const std::vector<core::RequestType>& types) {
  double tokens = 0;
  for (const core::RequestType& type : types) tokens += type.rate * core::StageTokens(type);
  return kTime.d1 * tokens;
}

std::vector<core::RequestType> AtLoad(std::vector<core::RequestType> types, double load) {
  const double times = load / LoadOf(types);
  for (core::RequestType& type : types) type.rate *= times;
  return types;
}

}  // namespace bfio::sim::wait
