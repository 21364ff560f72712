// Types of requests, their stages, and segments of stages for requests of unknown type.
//
// Purpose: the vocabulary of "Fluid-Based Online Scheduling under Memory Constraints", for wait_admission.h.
// A request of a type passes stages 0 (its prompt is read) to l'; at stage k it holds l + k tokens. Rates per
// unit of time, sizes in tokens. Pure functions; any thread.
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

// For Nested WAIT (lengths unknown): segment i has the stages between the ends of types i - 1 and i; a
// request's type is known when it ends. Types have one prompt length and are sorted by output.
struct Segments {
  int64_t prompt = 0;
  // Last stage of each segment; the first segment begins at stage 0.
  std::vector<int64_t> last_stage;
  // Share of the requests of segment i - 1 that reach segment i; 1 for the first.
  std::vector<double> survive;
  double rate = 0;

  int64_t first_stage(size_t i) const { return i == 0 ? 0 : last_stage[i - 1] + 1; }
};
// One segment per type. REQUIRES: types sorted by output, outputs distinct. The prompt length is the mean
// over the rates, rounded up.
Segments SegmentsOf(absl::Span<const RequestType> types);
// Segments with these last stages, in ascending order.
Segments SegmentsEndingAt(absl::Span<const RequestType> types, const std::vector<int64_t>& last_stages);

// Tokens that a request holds, summed over the stages of segment i.
double SegmentTokens(const Segments& segments, size_t i);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_ADMISSION_REQUEST_STAGES_H_
