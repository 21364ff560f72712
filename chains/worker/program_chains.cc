// Adds the options of a server of chains.
#include "worker/link/program_chains.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "chains/worker/pipeline_worker.h"

namespace bfio::worker {
namespace {

// "HOST:PORT,address=HOST:PORT,micro_batches=N"; the last two may be left out.
absl::StatusOr<PipelineOptions> ParseListen(absl::string_view text, PipelineOptions options) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ',');
  options.listen = std::string(parts[0]);
  for (size_t i = 1; i < parts.size(); ++i) {
    absl::string_view value = parts[i];
    if (absl::ConsumePrefix(&value, "address=")) {
      options.address = std::string(value);
    } else if (!absl::ConsumePrefix(&value, "micro_batches=") ||
               !absl::SimpleAtoi(value, &options.micro_batches) || options.micro_batches < 1 ||
               options.micro_batches > kMaxInFlight) {
      return absl::InvalidArgumentError(absl::StrCat(
          "must be HOST:PORT,address=HOST:PORT,micro_batches=N with N within 1..", kMaxInFlight));
    }
  }
  return options;
}

}  // namespace

MakePartServer AddPartServerOptions(OptionTable& table) {
  const auto options = std::make_shared<PipelineOptions>();
  table.AddParsed(
      "pipeline_listen", options.get(), "",
      "chains: HOST:PORT to listen on for the other servers of a chain. The process then serves only a "
      "part of the model; the router chooses the part. Settings may follow: HOST:PORT,address=HOST:PORT "
      "(at which other servers reach this one, if it is another address),micro_batches=N (of a step, in "
      "flight at the same time; 4). Empty: an ordinary worker with the whole model",
      [options](const std::string& text) { return ParseListen(text, *options); });
  table.AddParsed(
      "pipeline_tls", &options->tls, "",
      "chains: cert=FILE,key=FILE,ca=FILE (PEM): certificate and key of this server, for incoming and "
      "outgoing connections, and the CAs of the other servers' certificates. Empty: no TLS",
      ParseTlsFiles);
  return [options]() -> std::shared_ptr<const PartServer> {
    if (options->listen.empty()) return nullptr;
    return std::make_shared<PipelineWorker>(*options);
  };
}

}  // namespace bfio::worker
