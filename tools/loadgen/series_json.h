// The parts of a run's page from which charts are drawn.
//
// Purpose: distributions and time series as lists of equal length, with null where nothing was measured. Pure
// functions. Units: seconds, tokens.
#ifndef BFIO_TOOLS_LOADGEN_SERIES_JSON_H_
#define BFIO_TOOLS_LOADGEN_SERIES_JSON_H_

#include "nlohmann/json_fwd.hpp"
#include "tools/loadgen/results.h"
#include "tools/loadgen/timeline.h"

namespace bfio::loadgen {

// {"share": [0, 0.01, .. 1], "ttft_s": [..], ..}: the value that this share of the samples does not exceed.
nlohmann::ordered_json DistributionsJson(const Results& results);

// {"width_s": .., "t_s": [..], "due_per_s": [..], .., "ttft_s": {"p50": [..], ..}, ..}; t_s is the middle of
// each interval. The last interval has no rate if it is too short.
nlohmann::ordered_json SeriesJson(const Timeline& timeline, double duration_s);

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_SERIES_JSON_H_
