// bfio_loadgen's options as an OptionTable, with one record for each.
//
// Purpose: everything that can be wrong is found here, before the first packet is sent. Threads: call from
// main, before threads are started.
#ifndef BFIO_TOOLS_LOADGEN_FLAGS_H_
#define BFIO_TOOLS_LOADGEN_FLAGS_H_

#include <string>

#include "absl/status/status.h"
#include "common/config/options.h"
#include "common/net/tls.h"
#include "tools/loadgen/options.h"

namespace bfio::loadgen {

struct Settings {
  Options options;
  // TLS files and bearer tokens for the client API and the admin API. The flags have the prefixes that the
  // router's flags for the same links have.
  TlsFiles client_tls, admin_tls;
  std::string client_token_file, admin_token_file;
  std::string log_level = "info", log_format = "text";
};

// `settings` outlives the reading of `table`.
void AddLoadgenOptions(OptionTable& table, Settings& settings);

// INVALID_ARGUMENT with one line for values that contradict each other and for files that cannot be written.
absl::Status CheckOptions(const Options& options);

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_FLAGS_H_
