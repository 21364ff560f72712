// The integer program as text, for solvers that prove optimality.
//
// Purpose: an instance under the paper's J as a CPLEX LP file, which CBC, HiGHS and glpsol read. The program
// (BF-IO paper, section 3, IO):
//   x_I_G  binary: item I goes to worker G; only for workers with a free slot
//   M_h    the largest time h steps ahead
//   one    fixed at 1; carries the constant of the objective
//   min    sum_h d_h (G M_h - sum_g T_g(h))
//   with   M_h >= T_g(h); each item at most once; each worker's slots; the given number of items per class;
//          each worker's KV capacity, where its free KV is less than all items together reserve
// Numbers have 17 digits, so that the optimum of the file is the optimum of the instance.
// Pure: text in, text out. Threads: any, no state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "router/core/solver/instance.h"

namespace bfio::sim {

struct LpOptions {
  // Number of items to admit per class, the most urgent class first. Empty: as many as the slots allow, the
  // most urgent first, which is the program when KV capacity does not bind. When it binds, pass the numbers
  // that a plan has admitted.
  absl::Span<const int64_t> admit;
  // Written as a comment into the first line.
  std::string title = "bfio decision";
};

// Appends the file to `text`. INVALID_ARGUMENT for an objective that is not linear, or an item that a worker
// is reserved for.
absl::Status AppendLp(const core::Instance& instance, core::ObjectiveKind objective, const LpOptions& options,
                      std::string& text);

}  // namespace bfio::sim
