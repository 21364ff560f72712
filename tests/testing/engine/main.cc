// bfio_test_engine: the sim and cpu engines behind vLLM's gRPC API (test_engine.h). It takes the options of
// bfio_worker, of which those for the router have no effect.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/shutdown.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/config/program.h"
#include "common/config/tls_files.h"
#include "common/net/tls.h"
#include "common/telemetry/log.h"
#include "tests/testing/engine/test_engine.h"
#include "worker/link/flags.h"
#include "worker/link/worker.h"

namespace bfio::testing {
namespace {

struct Settings {
  worker::WorkerSettings worker;
  std::string listen = "127.0.0.1:50051";
  TestEngine::Model model;
  TlsFiles tls;
  std::string token;
  std::string kv_role, kv_directory;
};

// Refuses calls without the token.
class TokenCheck final : public grpc::AuthMetadataProcessor {
 public:
  explicit TokenCheck(const std::string& token) : expected_(absl::StrCat("Bearer ", token)) {}
  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext*, OutputMetadata*,
                       OutputMetadata*) override {
    const auto found = metadata.find("authorization");
    if (found != metadata.end() && found->second == expected_) return grpc::Status::OK;
    return {grpc::StatusCode::UNAUTHENTICATED, "the token is wrong"};
  }

 private:
  const std::string expected_;
};

absl::Status Serve(const Settings& settings) {
  const worker::WorkerOptions& options = settings.worker.worker;
  BFIO_ASSIGN_OR_RETURN(const auto engines,
                        worker::Engines::Create(options.engine, options.ranks_per_process));
  std::vector<std::unique_ptr<worker::Engine>> ranks;
  for (int i = 0; i < options.ranks_per_process; ++i) {
    BFIO_ASSIGN_OR_RETURN(auto rank, engines.Make(i));
    ranks.push_back(std::move(rank));
  }
  std::unique_ptr<worker::StepLog> log;
  if (!options.step_log.empty()) {
    BFIO_ASSIGN_OR_RETURN(log, worker::StepLog::Open(options.step_log, worker::kStepLogBytes));
  }
  std::unique_ptr<HandedOverKv> kv;
  if (!settings.kv_role.empty()) kv = std::make_unique<HandedOverKv>(settings.kv_directory);
  TestEngine engine(settings.model, std::move(ranks), log.get(), std::move(kv), settings.kv_role);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  int port = 0;
  const std::shared_ptr<grpc::ServerCredentials> credentials = ServerCredentials(settings.tls);
  if (!settings.token.empty())
    credentials->SetAuthMetadataProcessor(std::make_shared<TokenCheck>(settings.token));
  builder.AddListeningPort(settings.listen, credentials, &port);
  builder.RegisterService(&engine);
  builder.SetMaxReceiveMessageSize(64 << 20);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return absl::UnavailableError("--listen: cannot open the port");
  // Scripts parse this line, as they do the router's.
  std::printf("bfio_test_engine: vLLM's API at %s\n", settings.listen.c_str());
  std::fflush(stdout);
  while (!ShutdownSignal::WaitFor(absl::Hours(1))) {
  }
  // Running requests may end.
  server->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(options.drain_timeout));
  server->Wait();
  return absl::OkStatus();
}

}  // namespace
}  // namespace bfio::testing

int main(int argc, char** argv) {
  const bfio::ProgramInfo info{
      "bfio_test_engine", bfio::Version(),
      "bfio_test_engine serves vLLM's gRPC API with the engines of bfio_worker, for tests.\n"};
  bfio::testing::Settings settings;
  bfio::OptionTable table;
  bfio::worker::AddWorkerOptions(table, settings.worker);
  table.Add("listen", &settings.listen, "HOST:PORT of the API");
  table.AddParsed("tls", &settings.tls, "", "cert=FILE,key=FILE,ca=FILE of the API; empty: plain text",
                  bfio::ParseTlsFiles);
  table.Add("token", &settings.token, "bearer token that calls need; needs --tls");
  table.Add("kv_role", &settings.kv_role, "kv_producer or kv_consumer; empty: it hands nothing over");
  table.Add("kv_directory", &settings.kv_directory, "where servers of both roles keep KV; needs --kv_role");
  table.Add("tokenizer", &settings.model.tokenizer, "directory of the tokenizer; empty: none");
  table.Add("served_model_name", &settings.model.name, "the model's name for gateways");
  bfio::InitWithoutArguments(argc, argv, info, table);
  absl::Status status = bfio::InitLogging(info.name, settings.worker.log_level, settings.worker.log_format);
  if (status.ok()) status = bfio::worker::FinishWorkerOptions(table, settings.worker);
  if (!status.ok()) return bfio::ExitWith(info, status);
  bfio::ShutdownSignal::Install();
  status = bfio::testing::Serve(settings);
  return status.ok() ? 0 : bfio::ExitWith(info, status);
}
