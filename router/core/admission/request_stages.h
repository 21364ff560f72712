// Types of requests, the stages they pass, and segments of stages for types that are not distinguished.
//
// Purpose: the words of "Fluid-Based Online Scheduling under Memory Constraints" that wait_gate.h and the
// simulator (tools/sim/admission/fluid.h) share. A request of a type passes stages 0 (its prompt is read) to
// l'; at stage k it holds l + k tokens. Rates per unit of time, sizes in tokens. Pure functions; any thread.
#ifndef BFIO_ROUTER_CORE_ADMISSION_REQUEST_STAGES_H_
#define BFIO_ROUTER_CORE_ADMISSION_REQUEST_STAGES_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace bfio::core {

struct RequestType {
  double rate = 0;     // lambda_j
  int64_t prompt = 0;  // l_j
  int64_t output = 0;  // l'_j, at least 1
};

// Tokens that a request of this type holds, summed over its stages: (l' + 1)(l + l' / 2).
double StageTokens(const RequestType& type);

// Nested WAIT (lengths unknown): segment i holds the stages from where type i - 1 ends to where type i does;
// a request shows its type by leaving. Types with one prompt length, by output ascending.
struct Segments {
  int64_t prompt = 0;
  // Last stage of each segment; the first begins at stage 0.
  std::vector<int64_t> last_stage;
  // Share of the requests of segment i - 1 that reach segment i; 1 for the first.
  std::vector<double> survive;
  double rate = 0;

  int64_t first_stage(size_t i) const { return i == 0 ? 0 : last_stage[i - 1] + 1; }
};
// A segment for each type. REQUIRES: types sorted by output, outputs distinct. The prompt is the rates' mean,
// rounded up.
Segments SegmentsOf(absl::Span<const RequestType> types);
// With these last stages instead, ascending.
Segments SegmentsEndingAt(absl::Span<const RequestType> types, const std::vector<int64_t>& last_stages);

// Tokens that a request holds, summed over the stages of segment i.
double SegmentTokens(const Segments& segments, size_t i);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_ADMISSION_REQUEST_STAGES_H_
