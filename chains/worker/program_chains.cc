// Adds the options of a server of chains.
#include "worker/link/program_chains.h"

#include <memory>

#include "chains/worker/pipeline_worker.h"

namespace bfio::worker {

MakePartServer AddPartServerOptions(OptionTable& table) {
  const auto options = std::make_shared<PipelineOptions>();
  table.Add(
      "pipeline_listen", &options->listen,
      "HOST:PORT: serve parts of the model in chains with other servers, which come in here; the router "
      "says which parts. Empty: an ordinary worker, with the whole model");
  table.Add("pipeline_address", &options->address,
            "HOST:PORT under which other servers reach --pipeline_listen; empty: as it listens");
  table.AddParsed("pipeline_tls", &options->tls, "",
                  "chains: cert=FILE,key=FILE,ca=FILE, PEM: this server's certificate and its key, for both "
                  "ends of the streams, and the CAs of the other servers' certificates. Empty: plain text",
                  ParseTlsFiles);
  table.Add("micro_batches", &options->micro_batches, Within(1, kMaxInFlight),
            "chains: parts of a step that are under way at a time");
  return [options]() -> std::shared_ptr<const PartServer> {
    if (options->listen.empty()) return nullptr;
    return std::make_shared<PipelineWorker>(*options);
  };
}

}  // namespace bfio::worker
