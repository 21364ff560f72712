// The program's flags as Options.
//
// Purpose: everything that can be wrong before the first packet is found here. Threads: call from main, after
// the command line has been read.
#ifndef BFIO_TOOLS_LOADGEN_FLAGS_H_
#define BFIO_TOOLS_LOADGEN_FLAGS_H_

#include <string>

#include "absl/status/statusor.h"
#include "tools/loadgen/options.h"

namespace bfio::loadgen {

// INVALID_ARGUMENT with one line for values that make no sense and for files that cannot be written.
absl::StatusOr<Options> OptionsFromFlags();

// Of --report, or --html; "" without either. All that `compare` takes.
absl::StatusOr<std::string> ReportPath();

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_FLAGS_H_
