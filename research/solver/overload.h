// Instances from simulated traffic.
//
// Purpose: a small overload simulation with the semantics of bfio_sim (reveal, decide, admit, measure, one
// token each, complete) whose decisions are Instances with oracle lookahead: every present request's loads
// and every waiting request's end are known for H steps. The decision is a function, so that the solver, CBC
// or any other method can be used. Deterministic.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "common/workload/trace.h"
#include "router/core/solver/instance.h"

namespace bfio::testing {

struct OverloadOptions {
  // G, B, H, and the number of waiting requests that are kept revealed.
  int32_t workers = 16;
  int32_t batch = 72;
  int32_t horizon = 0;
  int64_t reveal = 128;
};

class Overload {
 public:
  using Decide = std::function<const core::Solution&(const core::Instance&)>;

  // Borrows the trace, which is repeated.
  Overload(const OverloadOptions& options, const Trace& trace);

  // Takes one step; `decide` is called when there is something to decide. Returns the step's imbalance in
  // tokens.
  double Step(const Decide& decide);

 private:
  struct Request {
    int64_t load = 0;
    // Tokens still to generate.
    int64_t left = 0;
  };

  const core::Instance& Build();

  OverloadOptions options_;
  const Trace& trace_;
  size_t next_ = 0;
  std::deque<Request> waiting_;
  std::vector<std::vector<Request>> workers_;
  core::Instance instance_;
};

}  // namespace bfio::testing
