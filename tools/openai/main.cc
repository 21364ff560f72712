// bfio_openai: OpenAI's completions API in front of a bfio router.
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "bfio/v1/config.pb.h"
#include "common/auth/token_file.h"
#include "common/base/address.h"
#include "common/base/shutdown.h"
#include "common/base/spdlog.h"
#include "common/config/program.h"
#include "common/http/http_server.h"
#include "common/net/exposure.h"
#include "common/net/grpc_log.h"
#include "common/net/tls.h"
#include "common/telemetry/log.h"
#include "tools/client/client.h"
#include "tools/openai/http_front.h"

using bfio::client::RetryOptions;
using bfio::openai::FrontOptions;
using bfio::openai::ParseOptions;

ABSL_FLAG(std::string, listen, FrontOptions().listen, "HOST:PORT to serve HTTP on; port 0 takes a free one");
ABSL_FLAG(std::string, tls_cert, "",
          "PEM file of the certificate of --listen, with its chain: HTTPS; empty: plain text");
ABSL_FLAG(std::string, tls_key, "", "PEM file of that certificate's key");
ABSL_FLAG(bool, insecure, false,
          "--listen may be an address that other machines can reach without --tls_cert, or with "
          "--client_token_file");
ABSL_FLAG(std::string, target, "127.0.0.1:50051", "HOST:PORT of the router's client API");
ABSL_FLAG(std::string, client_tls_ca, "",
          "PEM file of the CAs of the router's certificate; empty: plain text");
ABSL_FLAG(std::string, client_tls_cert, "", "PEM file of this program's certificate, where it is asked for");
ABSL_FLAG(std::string, client_tls_key, "", "PEM file of that certificate's key");
ABSL_FLAG(std::string, client_token_file, "",
          "file with the bearer token of requests that bring none of their own");
ABSL_FLAG(std::string, model, ParseOptions().model, "the model's name in /v1/models and replies");
ABSL_FLAG(uint32_t, byte_offset, ParseOptions().byte_offset,
          "text is taken byte by byte: a byte's token id is this plus its value");
ABSL_FLAG(uint32_t, default_max_tokens, ParseOptions().default_max_tokens,
          "tokens to generate where a request sets no limit");
ABSL_FLAG(absl::Duration, timeout, absl::Minutes(5), "time for one request");
ABSL_FLAG(uint32_t, max_retries, 0,
          "how often a request refused by the router is sent again before its client is told (429, 503)");
ABSL_FLAG(bool, resume, true, "requests outlive a lost connection to the router and its restart");
ABSL_FLAG(absl::Duration, resume_patience, RetryOptions().resume_patience,
          "how long to look for the router meanwhile");
ABSL_FLAG(uint32_t, connections, 1, "connections to the router");
ABSL_FLAG(uint32_t, max_connections, FrontOptions().max_connections, "HTTP connections served at once");
ABSL_FLAG(uint32_t, max_body_kb, FrontOptions().max_body_bytes >> 10, "largest request body, in KiB");
ABSL_FLAG(
    std::string, http_listen, "",
    "HOST:PORT of /metrics and /healthz, plain text, for a network that the scraper shares; empty: none");
ABSL_FLAG(absl::Duration, drain_timeout, absl::Seconds(30), "on SIGTERM: time for what is under way");
ABSL_FLAG(std::string, log_level, "info", "trace, debug, info, warning or error");
ABSL_FLAG(std::string, log_format, "text", "text or json");

namespace bfio::openai {
namespace {

constexpr uint32_t kMostConnections = 8192, kMostBodyKb = 64 << 10;

const ProgramInfo& Info() {
  static const ProgramInfo* const info = new ProgramInfo{
      "bfio_openai", BFIO_VERSION,
      "bfio_openai serves OpenAI's completions API (/v1/completions, /v1/chat/completions, /v1/models, "
      "/health)\n"
      "in front of a bfio router. Prompts are lists of token ids, or text taken byte by byte.\n\n"
      "  bfio_openai --listen=127.0.0.1:8000 --target=127.0.0.1:50051\n"
      "  curl -N localhost:8000/v1/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{\"prompt\": [1, 2, 3], \"max_tokens\": 8, \"stream\": true}'\n\n"
      "docs/api.md says what each field does."};
  return *info;
}

absl::Status CheckFlags() {
  if (absl::GetFlag(FLAGS_byte_offset) > std::numeric_limits<uint32_t>::max() - 255) {
    return absl::InvalidArgumentError("--byte_offset: must be at most 4294967040");
  }
  const uint32_t connections = absl::GetFlag(FLAGS_max_connections), body = absl::GetFlag(FLAGS_max_body_kb);
  if (connections < 1 || connections > kMostConnections) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max_connections=", connections, ": must be within 1..", kMostConnections));
  }
  if (body < 1 || body > kMostBodyKb) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max_body_kb=", body, ": must be within 1..", kMostBodyKb));
  }
  if (absl::GetFlag(FLAGS_connections) < 1 || absl::GetFlag(FLAGS_connections) > 64) {
    return absl::InvalidArgumentError("--connections: must be within 1..64");
  }
  if (absl::GetFlag(FLAGS_timeout) <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("--timeout: must be positive");
  }
  const absl::StatusOr<Address> listen = ParseAddress(absl::GetFlag(FLAGS_listen), true);
  if (!listen.ok()) return absl::InvalidArgumentError(absl::StrCat("--listen: ", listen.status().message()));
  const TlsFiles tls = {.cert = absl::GetFlag(FLAGS_tls_cert), .key = absl::GetFlag(FLAGS_tls_key)};
  if (tls.enabled()) {
    if (absl::Status status = CheckTlsFiles(tls, "tls", TlsEnd::kServer); !status.ok()) return status;
  }
  if (IsLoopback(*listen) || absl::GetFlag(FLAGS_insecure)) return absl::OkStatus();
  // The router authenticates callers with tokens of their own.
  const bool for_anybody = !absl::GetFlag(FLAGS_client_token_file).empty();
  if (tls.enabled() && !for_anybody) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--listen=", listen->ToString(), ": other machines can reach it, and ",
      tls.enabled() ? "everybody would call with --client_token_file: leave that out, or give --insecure"
                    : "nothing is encrypted: give --tls_cert and --tls_key, or --insecure"));
}

absl::StatusOr<std::unique_ptr<client::Client>> ClientFromFlags() {
  client::ClientOptions options = {
      .target = absl::GetFlag(FLAGS_target),
      .tls = {absl::GetFlag(FLAGS_client_tls_cert), absl::GetFlag(FLAGS_client_tls_key),
              absl::GetFlag(FLAGS_client_tls_ca)},
      .connections = static_cast<int>(absl::GetFlag(FLAGS_connections))};
  if (const std::string file = absl::GetFlag(FLAGS_client_token_file); !file.empty()) {
    absl::StatusOr<std::string> token = ReadTokenFile(file);
    if (!token.ok()) {
      return absl::Status(token.status().code(),
                          absl::StrCat("--client_token_file: ", token.status().message()));
    }
    options.token = *std::move(token);
  }
  return client::Client::Create(options);
}

FrontOptions FrontFromFlags() {
  FrontOptions options;
  options.listen = absl::GetFlag(FLAGS_listen);
  options.parse = {.model = absl::GetFlag(FLAGS_model),
                   .byte_offset = absl::GetFlag(FLAGS_byte_offset),
                   .default_max_tokens = absl::GetFlag(FLAGS_default_max_tokens)};
  options.call.timeout = absl::GetFlag(FLAGS_timeout);
  options.call.retry.max_retries = static_cast<int>(std::min(absl::GetFlag(FLAGS_max_retries), 1000000u));
  options.call.retry.resume_patience = absl::GetFlag(FLAGS_resume_patience);
  options.call.resume = absl::GetFlag(FLAGS_resume);
  options.max_connections = static_cast<int>(absl::GetFlag(FLAGS_max_connections));
  options.max_body_bytes = size_t{absl::GetFlag(FLAGS_max_body_kb)} << 10;
  options.tls_cert = absl::GetFlag(FLAGS_tls_cert);
  options.tls_key = absl::GetFlag(FLAGS_tls_key);
  return options;
}

// `front` outlives what is returned.
absl::StatusOr<std::unique_ptr<HttpServer>> OpenWeb(const std::string& listen, const HttpFront* front) {
  HttpServer::Options options;
  options.listen = listen;
  // Scrapers may call it by whatever name.
  options.gate = [](const HttpCaller& caller) { return caller.address; };
  auto server = HttpServer::Bind(std::move(options));
  if (!server.ok()) return server;
  (*server)->Get("/healthz", [](const HttpRequest&) { return HttpReply{.body = "ok\n"}; });
  (*server)->Get("/metrics", [front](const HttpRequest&) {
    return HttpReply{200, "text/plain; version=0.0.4; charset=utf-8", front->MetricsText(BFIO_VERSION)};
  });
  (*server)->Start();
  return server;
}

absl::Status Run() {
  if (absl::Status status = CheckFlags(); !status.ok()) return status;
  const auto client = ClientFromFlags();
  if (!client.ok()) return client.status();
  const auto front = HttpFront::Bind(FrontFromFlags(), client->get());
  if (!front.ok()) return front.status();
  std::unique_ptr<HttpServer> web;
  if (const std::string listen = absl::GetFlag(FLAGS_http_listen); !listen.empty()) {
    auto opened = OpenWeb(listen, front->get());
    if (!opened.ok())
      return absl::Status(opened.status().code(), absl::StrCat("--http_listen: ", opened.status().message()));
    web = *std::move(opened);
    spdlog::info("metrics on {}", web->address());
  }
  (*front)->Start();
  std::printf("bfio_openai: serving on %s, router %s\n", (*front)->address().c_str(),
              absl::GetFlag(FLAGS_target).c_str());
  std::fflush(stdout);
  while (!ShutdownSignal::WaitFor(absl::Seconds(1))) {
    if (!(*front)->running()) {
      return absl::UnavailableError(absl::StrCat("no longer listening on ", (*front)->address()));
    }
  }
  spdlog::info("stopping: waiting for what is under way");
  (*front)->Stop(absl::GetFlag(FLAGS_drain_timeout));
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  const std::vector<std::string> rest = InitProgram(argc, argv, Info(), v1::OpenaiConfig::default_instance());
  if (!rest.empty())
    return ExitWith(Info(), absl::InvalidArgumentError(absl::StrCat("unexpected argument ", rest[0])));
  const absl::Status logging =
      InitLogging(Info().name, absl::GetFlag(FLAGS_log_level), absl::GetFlag(FLAGS_log_format));
  if (!logging.ok()) return ExitWith(Info(), logging);
  InstallGrpcLog();
  ShutdownSignal::Install();
  const absl::Status status = Run();
  return status.ok() ? 0 : ExitWith(Info(), status);
}

}  // namespace
}  // namespace bfio::openai

int main(int argc, char** argv) {
  return bfio::openai::Main(argc, argv);
}
