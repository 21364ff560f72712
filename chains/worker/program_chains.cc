// Adds the options of a server of chains.
#include "worker/link/program_chains.h"

#include <memory>

#include "chains/worker/pipeline_worker.h"

namespace bfio::worker {

MakePartServer AddPartServerOptions(OptionTable& table) {
  const auto options = std::make_shared<PipelineOptions>();
  table.Add("pipeline_listen", &options->listen,
            "chains: HOST:PORT to listen on for the other servers of a chain. The process then serves only a "
            "part of the model; the router chooses the part. Empty: an ordinary worker with the whole model");
  table.Add("pipeline_address", &options->address,
            "chains: HOST:PORT at which other servers reach this one; empty: --pipeline_listen");
  table.AddParsed(
      "pipeline_tls", &options->tls, "",
      "chains: cert=FILE,key=FILE,ca=FILE (PEM): certificate and key of this server, for incoming and "
      "outgoing connections, and the CAs of the other servers' certificates. Empty: no TLS",
      ParseTlsFiles);
  table.Add("micro_batches", &options->micro_batches, Within(1, kMaxInFlight),
            "chains: micro-batches per step that may be in flight at the same time");
  return [options]() -> std::shared_ptr<const PartServer> {
    if (options->listen.empty()) return nullptr;
    return std::make_shared<PipelineWorker>(*options);
  };
}

}  // namespace bfio::worker
