// The flags of a server of chains.
#include <cstdint>
#include <string>

#include "absl/flags/flag.h"
#include "chains/worker/pipeline_worker.h"
#include "worker/link/program_chains.h"

ABSL_FLAG(std::string, pipeline_listen, "",
          "HOST:PORT: serve parts of the model in chains with other servers, which come in here; the router "
          "says which parts. Empty: an ordinary worker, with the whole model");
ABSL_FLAG(std::string, pipeline_address, "",
          "HOST:PORT under which other servers reach --pipeline_listen; empty: as it listens");
ABSL_FLAG(std::string, pipeline_tls_cert, "",
          "chains: PEM file of this server's certificate, for both ends of the streams; empty: plain text");
ABSL_FLAG(std::string, pipeline_tls_key, "", "chains: PEM file of that certificate's key");
ABSL_FLAG(std::string, pipeline_tls_ca, "", "chains: PEM file of the CAs of the other servers' certificates");
ABSL_FLAG(uint32_t, micro_batches, 4, "chains: parts of a step that are under way at a time, 1 to 64");

namespace bfio::worker {

std::shared_ptr<const PartServer> PartServerFromFlags() {
  PipelineOptions options;
  options.listen = absl::GetFlag(FLAGS_pipeline_listen);
  if (options.listen.empty()) return nullptr;
  options.address = absl::GetFlag(FLAGS_pipeline_address);
  options.tls = {absl::GetFlag(FLAGS_pipeline_tls_cert), absl::GetFlag(FLAGS_pipeline_tls_key),
                 absl::GetFlag(FLAGS_pipeline_tls_ca)};
  // Out of range becomes 0 or less, which is refused by name.
  options.micro_batches = static_cast<int32_t>(absl::GetFlag(FLAGS_micro_batches));
  return std::make_shared<PipelineWorker>(std::move(options));
}

}  // namespace bfio::worker
