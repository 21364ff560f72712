// The version of this build.
#pragma once

namespace bfio {

// For example "0.2.0+1a2b3c4d5e6f": the version and the commit, "0.2.0+unknown" when built neither in a
// checkout nor from an archive of one. Threads: any.
const char* Version();

}  // namespace bfio
