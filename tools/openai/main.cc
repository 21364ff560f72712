// bfio_openai: OpenAI's completions API in front of a bfio router.
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
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

struct Settings {
  FrontOptions front = {.call = {.retry = {.max_retries = 0}, .resume = true}};
  client::ClientOptions router = {.target = "127.0.0.1:50051"};
  TlsFiles tls;
  std::string client_token_file, http_listen;
  bool insecure = false;
  absl::Duration drain_timeout = absl::Seconds(30);
  std::string log_level = "info", log_format = "text";
};

void AddOptions(OptionTable& table, Settings& settings) {
  const Within timeout(absl::Milliseconds(1), absl::Hours(24));
  FrontOptions& o = settings.front;
  table.Add("listen", &o.listen, "HOST:PORT to serve HTTP on; port 0 takes a free one");
  table.AddParsed("tls", &settings.tls, "",
                  "cert=FILE,key=FILE, PEM: the certificate of --listen, with its chain, and its key: HTTPS; "
                  "empty: plain text",
                  ParseTlsFiles);
  table.Add("insecure", &settings.insecure,
            "--listen may be an address that other machines can reach without --tls, or with "
            "--client_token_file");
  table.Add("target", &settings.router.target, "HOST:PORT of the router's client API");
  table.AddParsed("client_tls", &settings.router.tls, "",
                  "cert=FILE,key=FILE,ca=FILE, PEM: the CAs of the router's certificate, and this program's "
                  "certificate and its key where it is asked for; empty: plain text",
                  ParseTlsFiles);
  table.Add("client_token_file", &settings.client_token_file,
            "file with the bearer token of requests that bring none of their own");
  table.Add("model", &o.parse.model, "the model's name in /v1/models and replies");
  table.Add("byte_offset", &o.parse.byte_offset, Within(0, std::numeric_limits<uint32_t>::max() - 255),
            "text is taken byte by byte: a byte's token id is this plus its value");
  table.Add("default_max_tokens", &o.parse.default_max_tokens,
            "tokens to generate where a request sets no limit");
  table.Add("timeout", &o.call.timeout, timeout, "time for one request");
  table.Add("max_retries", &o.call.retry.max_retries, Within(0, 1'000'000),
            "how often a request refused by the router is sent again before its client is told (429, 503)");
  table.Add("resume", &o.call.resume, "requests outlive a lost connection to the router and its restart");
  table.Add("resume_patience", &o.call.retry.resume_patience, Within(absl::ZeroDuration(), absl::Hours(24)),
            "how long to look for the router meanwhile");
  table.Add("connections", &settings.router.connections, Within(1, 64), "connections to the router");
  table.Add("max_connections", &o.max_connections, Within(1, kMostConnections),
            "HTTP connections served at once");
  table.AddScaled("max_body_kb", static_cast<double>(o.max_body_bytes >> 10), Within(1, kMostBodyKb),
                  "largest request body, in KiB",
                  [&o](double kb) { o.max_body_bytes = static_cast<size_t>(kb * 1024); });
  table.Add("http_listen", &settings.http_listen,
            "HOST:PORT of /metrics and /healthz, plain text, for a network that the scraper shares; empty: "
            "none");
  table.Add("drain_timeout", &settings.drain_timeout, Within(absl::ZeroDuration(), absl::Hours(24)),
            "on SIGTERM: time for what is under way");
  table.Add("log_level", &settings.log_level, "trace, debug, info, warning or error");
  table.Add("log_format", &settings.log_format, "text or json");
}

// Whether --listen may be opened, with what TLS files.
absl::Status SetTls(Settings& settings) {
  const TlsFiles& tls = settings.tls;
  const absl::StatusOr<Address> listen = ParseAddress(settings.front.listen, true);
  if (!listen.ok()) return absl::InvalidArgumentError(absl::StrCat("--listen: ", listen.status().message()));
  if (!tls.ca.empty())
    return absl::InvalidArgumentError("--tls: nobody is asked for a certificate: no ca=FILE");
  if (absl::Status status = CheckTlsFiles(tls, "tls", TlsEnd::kServer); !status.ok()) return status;
  settings.front.tls_cert = tls.cert;
  settings.front.tls_key = tls.key;
  if (IsLoopback(*listen) || settings.insecure) return absl::OkStatus();
  // Callers with tokens of their own are asked by the router.
  const bool for_anybody = !settings.client_token_file.empty();
  if (tls.enabled() && !for_anybody) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--listen=", listen->ToString(), ": other machines can reach it, and ",
      tls.enabled() ? "everybody would call with --client_token_file: leave that out, or give --insecure"
                    : "nothing is encrypted: give --tls=cert=FILE,key=FILE, or --insecure"));
}

absl::StatusOr<std::unique_ptr<client::Client>> MakeClient(Settings& settings) {
  if (!settings.client_token_file.empty()) {
    absl::StatusOr<std::string> token = ReadTokenFile(settings.client_token_file);
    if (!token.ok()) {
      return absl::Status(token.status().code(),
                          absl::StrCat("--client_token_file: ", token.status().message()));
    }
    settings.router.token = *std::move(token);
  }
  return client::Client::Create(settings.router);
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

absl::Status Run(Settings& settings) {
  if (absl::Status status = SetTls(settings); !status.ok()) return status;
  const auto client = MakeClient(settings);
  if (!client.ok()) return client.status();
  const auto front = HttpFront::Bind(settings.front, client->get());
  if (!front.ok()) return front.status();
  std::unique_ptr<HttpServer> web;
  if (!settings.http_listen.empty()) {
    auto opened = OpenWeb(settings.http_listen, front->get());
    if (!opened.ok())
      return absl::Status(opened.status().code(), absl::StrCat("--http_listen: ", opened.status().message()));
    web = *std::move(opened);
    spdlog::info("metrics on {}", web->address());
  }
  (*front)->Start();
  std::printf("bfio_openai: serving on %s, router %s\n", (*front)->address().c_str(),
              settings.router.target.c_str());
  std::fflush(stdout);
  while (!ShutdownSignal::WaitFor(absl::Seconds(1))) {
    if (!(*front)->running()) {
      return absl::UnavailableError(absl::StrCat("no longer listening on ", (*front)->address()));
    }
  }
  spdlog::info("stopping: waiting for what is under way");
  (*front)->Stop(settings.drain_timeout);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Settings settings;
  OptionTable table;
  AddOptions(table, settings);
  InitWithoutArguments(argc, argv, Info(), table);
  absl::Status status = InitLogging(Info().name, settings.log_level, settings.log_format);
  if (!status.ok()) return ExitWith(Info(), status);
  InstallGrpcLog();
  ShutdownSignal::Install();
  status = Run(settings);
  return status.ok() ? 0 : ExitWith(Info(), status);
}

}  // namespace
}  // namespace bfio::openai

int main(int argc, char** argv) {
  return bfio::openai::Main(argc, argv);
}
